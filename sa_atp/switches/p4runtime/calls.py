"""The gRPC service P4Runtime: a client's stub, and a server's registration."""

from typing import Any

from sa_atp.switches.p4runtime.messages import SERVICE, methods
from sa_atp.switches.p4runtime.rpc import grpc

_KINDS = {(False, False): "unary_unary", (False, True): "unary_stream", (True, True): "stream_stream"}


class Stub:
    """A client's stub: each call of the service is an attribute."""

    def __init__(self, channel: Any) -> None:
        for name, asked, answered, *streams in methods():
            call = getattr(channel, _KINDS[streams[0], streams[1]])
            setattr(
                self, name,
                call(
                    f"/{SERVICE}/{name}",
                    request_serializer=asked.SerializeToString,
                    response_deserializer=answered.FromString,
                ),
            )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"P4Runtime has no call {name}")


def add_servicer(servicer: Any, server: Any) -> None:
    """Registers an object with a server: its methods answer the calls of their names; others are UNIMPLEMENTED."""
    handlers = {
        name: getattr(grpc, f"{_KINDS[streams[0], streams[1]]}_rpc_method_handler")(
            getattr(servicer, name),
            request_deserializer=asked.FromString,
            response_serializer=answered.SerializeToString,
        )
        for name, asked, answered, *streams in methods()
        if hasattr(servicer, name)
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
