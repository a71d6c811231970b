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

from sa_atp.errors import SaAtpError, UserError
from sa_atp.p4runtime.calls import add_servicer
from sa_atp.p4runtime.errors import Code, Refusal, WriteRefusal
from sa_atp.p4runtime.messages import any_pb2, p4info_pb2, p4runtime_pb2, status_pb2
from sa_atp.p4runtime.rpc import check_address, grpc
from sa_atp.softswitch.device import Device
from sa_atp.softswitch.p4runtime.arbitration import MOST_STREAMS
from sa_atp.softswitch.p4runtime.service import Service

ERROR_SPACE = "sa_atp"  # in which the target's own codes are numbered; it has none yet
QUEUED_PACKET_INS = 1024  # for a client that does not keep up; more are dropped
MOST_MESSAGE_BYTES = 256 << 20  # compiled programs are large
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class P4RuntimeServer:
    """A P4Runtime server for one device.

    packet_ins_dropped: packets that the primary client was too slow to take.
    """

    def __init__(self, device: Device, address: str = "127.0.0.1:9559") -> None:
        """Args: address: HOST:PORT to listen on, where port 0 takes a free one; or unix:PATH.

        Raises: UserError: the address is in use, or not an address of this machine.
        """
        check_address(address, lowest_port=0)
        self.service = Service(device)
        self.packet_ins_dropped = 0
        self._server = grpc.server(
            # every stream channel keeps a thread
            ThreadPoolExecutor(max_workers=MOST_STREAMS + 8, thread_name_prefix="p4runtime"),
            options=[
                ("grpc.so_reuseport", 0),  # a second server on a port must fail, not share it
                ("grpc.max_receive_message_length", MOST_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MOST_MESSAGE_BYTES),
            ],
        )
        add_servicer(_Servicer(self), self._server)
        try:
            self.port: int = self._server.add_insecure_port(address)
        except RuntimeError:
            self.port = 0
        if not self.port:
            self.service.close()
            raise UserError(f"P4Runtime: cannot listen on {address}: expected HOST:PORT of this machine, not in use")
        self.address = address if address.startswith("unix:") else f"{address.rsplit(':', 1)[0]}:{self.port}"

    def push(self, p4info: str, device_config: bytes, cookie: int | None = None) -> None:
        """Installs a program from this side, as if a client had pushed it. Args: p4info: in text form.

        Raises: UserError: the program does not load, or the P4Info is not its own.
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
        """Ends all streams; RPCs that are under way get `grace_s` seconds."""
        self.service.close()
        self._server.stop(grace_s).wait(grace_s + 5.0)

    def __enter__(self) -> "P4RuntimeServer":
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


class _Channel:
    """The way to one client: what is to be sent on its stream, in order."""

    def __init__(self, server: P4RuntimeServer) -> None:
        self._server = server
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.refusal: Refusal | None = None  # why the stream ends

    def send(self, message: Any) -> None:
        if message.HasField("packet") and self._waiting.qsize() >= QUEUED_PACKET_INS:
            self._server.packet_ins_dropped += 1
            return
        self._waiting.put(message)

    def close(self, refusal: Refusal | None = None) -> None:
        self.refusal = self.refusal or refusal
        self._waiting.put(None)

    def messages(self) -> Iterator[Any]:
        while (message := self._waiting.get()) is not None:
            yield message


class _Servicer:
    """Names of the methods are gRPC's."""

    def __init__(self, server: P4RuntimeServer) -> None:
        self.server = server
        self.service = server.service

    def Capabilities(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self.service.capabilities()

    def SetForwardingPipelineConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        return _answer(context, self.service.set_pipeline, request)

    def GetForwardingPipelineConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        return _answer(context, self.service.get_pipeline, request)

    def Write(self, request: Any, context: Any) -> Any:  # noqa: N802
        return _answer(context, self.service.write, request)

    def Read(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        try:
            yield from self.service.read(request)
        except SaAtpError as error:
            _abort(context, error)

    def StreamChannel(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:  # noqa: N802
        channel = _Channel(self.server)
        if not context.add_callback(channel.close):  # called when the client is gone, or the server stops
            return
        threading.Thread(target=self._listen, args=(requests, channel), name="p4runtime-stream", daemon=True).start()
        try:
            yield from channel.messages()
        finally:
            self.service.arbitration.leave(channel)
        if channel.refusal is not None:
            _abort(context, channel.refusal)

    def _listen(self, requests: Iterator[Any], channel: _Channel) -> None:
        try:
            for request in requests:
                self.service.stream_message(channel, request)
        except Refusal as refusal:
            channel.close(refusal)
        except Exception as error:
            # grpc raises a bare Exception where the stream was cancelled; anything else closes it too
            channel.close(Refusal(Code.INTERNAL, str(error)))
        channel.close()


def _answer(context: Any, method: Callable[[Any], Any], request: Any) -> Any:
    try:
        return method(request)
    except SaAtpError as error:
        return _abort(context, error)


def _abort(context: Any, error: SaAtpError) -> None:
    """Ends an RPC with a code, a sentence, and for a write one `p4.v1.Error` an update. (section 11.3)"""
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
