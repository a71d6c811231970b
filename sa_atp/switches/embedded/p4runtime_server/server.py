"""P4Runtime over gRPC: threads, streams and status details around `service`.

with P4RuntimeServer(device, "127.0.0.1:9559") as server:
    ...  # server.port is the port that it listens on
"""

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

from google.protobuf import text_format

from sa_atp.basics.errors import SaAtpError, UserError
from sa_atp.switches.embedded.device import Device
from sa_atp.switches.embedded.p4runtime_server.active_rpcs import ActiveRpcs, Rpc
from sa_atp.switches.embedded.p4runtime_server.arbitration import MOST_STREAMS
from sa_atp.switches.embedded.p4runtime_server.service import Service
from sa_atp.switches.p4runtime.errors import Code, Refusal, WriteRefusal
from sa_atp.switches.p4runtime.messages import SERVICE, any_pb2, methods, p4info_pb2, p4runtime_pb2, status_pb2
from sa_atp.switches.p4runtime.rpc import check_address, grpc

ERROR_SPACE = "sa_atp"  # of the target's own error codes, of which it has none yet
QUEUED_MESSAGES = 1024  # for a slow client; further packet-ins are dropped
MOST_MESSAGE_BYTES = 16 << 20  # four times what the largest of the project's own programs needs
MOST_CALLS = MOST_STREAMS + 16  # RPCs at a time, the streams of clients included
SPARE_THREADS = 8  # for new RPCs while idle ones are being ended
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class P4RuntimeServer:
    """A P4Runtime server for one device.

    packet_ins_dropped: packets that the primary client was too slow to take. calls: the active RPCs.
    """

    def __init__(self, device: Device, address: str = "127.0.0.1:9559") -> None:
        """Args: address: HOST:PORT to listen on (port 0: any free one), or unix:PATH.

        Raises: UserError: the address is in use, or not an address of this machine.
        """
        check_address(address, lowest_port=0)
        self.service = Service(device)
        self.packet_ins_dropped = 0
        self.calls = ActiveRpcs(MOST_CALLS)
        self._server = grpc.server(
            ThreadPoolExecutor(max_workers=MOST_CALLS + SPARE_THREADS, thread_name_prefix="p4runtime"),
            options=[
                ("grpc.so_reuseport", 0),  # a second server on a port must fail, not share it
                ("grpc.max_receive_message_length", MOST_MESSAGE_BYTES),
            ],
        )
        self._server.add_generic_rpc_handlers((_Rpcs(self).handler(),))
        try:
            self.port: int = self._server.add_insecure_port(address)
        except RuntimeError:
            self.port = 0
        if not self.port:
            self.service.close()
            raise UserError(f"P4Runtime: cannot listen on {address}: expected HOST:PORT of this machine, not in use")
        self.address = address if address.startswith("unix:") else f"{address.rsplit(':', 1)[0]}:{self.port}"

    def push(self, p4info: str, device_config: bytes, cookie: int | None = None) -> None:
        """Installs a program without a client. Args: p4info: in text form.

        Raises: UserError: the program does not load, or the P4Info is that of another program.
        """
        try:
            message = text_format.Parse(p4info, p4info_pb2.P4Info(), allow_unknown_field=True)
        except text_format.ParseError as error:
            raise UserError(f"not a P4Info in text form: {error}") from None
        config = p4runtime_pb2.ForwardingPipelineConfig(p4info=message, p4_device_config=device_config)
        if cookie is not None:
            config.cookie.cookie = cookie
        self.service.install(config)

    def start(self) -> "P4RuntimeServer":
        self._server.start()
        return self

    def stop(self, grace_s: float = 0.5) -> None:
        """Ends all streams; active RPCs have `grace_s` seconds to end."""
        self.service.close()
        self._server.stop(grace_s).wait(grace_s + 5.0)

    def __enter__(self) -> "P4RuntimeServer":
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


class _Channel:
    """A client's stream channel: a queue of the messages to send."""

    def __init__(self, server: P4RuntimeServer, cancel: Callable[[], None]) -> None:
        """Args: cancel: ends the stream of a client whose queue is full."""
        self._server = server
        self._cancel = cancel
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.refusal: Refusal | None = None  # the reason why the stream ends

    def send(self, message: Any) -> None:
        if self._waiting.qsize() < QUEUED_MESSAGES:
            self._waiting.put(message)
        elif message.HasField("packet"):
            self._server.packet_ins_dropped += 1
        elif message.HasField("arbitration"):
            self._cancel()
        # errors for a client that does not read them are dropped

    def close(self, refusal: Refusal | None = None) -> None:
        self.refusal = self.refusal or refusal
        self._waiting.put(None)

    def make_way(self) -> None:
        self.close(
            Refusal(
                Code.RESOURCE_EXHAUSTED, "ended for other clients: this stream channel has announced no election id"
            )
        )

    def messages(self) -> Iterator[Any]:
        while (message := self._waiting.get()) is not None:
            yield message


class _Rpcs:
    """The handlers of the RPCs for gRPC: all have streams of requests and answers, which are the same on the wire.

    So `active_rpcs` knows of each RPC whether it waits for its client.
    """

    def __init__(self, server: P4RuntimeServer) -> None:
        self.server = server
        self.service = server.service

    def handler(self) -> Any:
        service = self.service
        answers = {
            "Capabilities": self._single(lambda _: iter((service.capabilities(),))),
            "SetForwardingPipelineConfig": self._single(lambda request: iter((service.set_pipeline(request),))),
            "GetForwardingPipelineConfig": self._single(lambda request: iter((service.get_pipeline(request),))),
            "Write": self._single(lambda request: iter((service.write(request),))),
            "Read": self._single(service.read),
            "StreamChannel": self._stream_channel,
        }
        handlers = {
            name: grpc.stream_stream_rpc_method_handler(
                answers[name],
                request_deserializer=asked.FromString,
                response_serializer=answered.SerializeToString,
            )
            for name, asked, answered, _, _ in methods()
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _enter(self, call: Rpc, context: Any) -> None:
        """Adds an RPC until it ends; ends it with an error if there are too many."""
        try:
            self.server.calls.enter(call)
        except Refusal as refusal:
            _abort(context, refusal)
        if not context.add_callback(lambda: self.server.calls.leave(call)):
            self.server.calls.leave(call)  # the client is already gone

    def _single(self, method: Callable[[Any], Iterator[Any]]) -> Callable[[Iterator[Any], Any], Iterator[Any]]:
        """The handler of an RPC with one request. Args: method: answers the request."""

        def serve(requests: Iterator[Any], context: Any) -> Iterator[Any]:
            call = Rpc(context.cancel)
            self._enter(call, context)
            request = _first(requests)
            if request is None:
                return
            call.waits = False
            try:
                for answer in method(request):
                    call.waits = True
                    yield answer
                    call.waits = False
            except SaAtpError as error:
                _abort(context, error)

        return serve

    def _stream_channel(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        channel = _Channel(self.server, context.cancel)
        call = Rpc(channel.make_way)
        self._enter(call, context)
        if not context.add_callback(channel.close):  # called when the client is gone, or the server stops
            return
        threading.Thread(
            target=self._listen, args=(requests, channel, call), name="p4runtime-stream", daemon=True
        ).start()
        try:
            yield from channel.messages()
        finally:
            self.service.arbitration.leave(channel)
        if channel.refusal is not None:
            _abort(context, channel.refusal)

    def _listen(self, requests: Iterator[Any], channel: _Channel, call: Rpc) -> None:
        try:
            for request in requests:
                self.service.stream_message(channel, request)
                if request.HasField("arbitration"):
                    call.waits = False
        except Refusal as refusal:
            channel.close(refusal)
        except Exception as error:
            # gRPC raises a bare Exception if the stream was cancelled; other errors close it, too
            channel.close(Refusal(Code.INTERNAL, str(error)))
        channel.close()


def _first(requests: Iterator[Any]) -> Any:
    """The first request of an RPC; None if the RPC has ended without one."""
    try:
        return next(requests, None)
    except Exception:
        return None


def _abort(context: Any, error: SaAtpError) -> None:
    """Ends an RPC with a code and a sentence, and for a write a `p4.v1.Error` for each update. (section 11.3)"""
    code = error.code if isinstance(error, Refusal) else Code.INTERNAL
    status = status_pb2.Status(code=code, message=str(error))
    if isinstance(error, WriteRefusal):
        for outcome in error.outcomes:
            detail = p4runtime_pb2.Error()
            if outcome is not None:
                detail.canonical_code, detail.message, detail.space = outcome.code, str(outcome), ERROR_SPACE
            packed = any_pb2.Any()
            packed.Pack(detail)
            status.details.append(packed)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(_CODES[code], str(error))
