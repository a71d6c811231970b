"""The RPCs of P4Runtime for a device, as functions of messages, without gRPC.

Each raises `Refusal` (or `WriteRefusal`, with an outcome for each update) if the RPC ends with an error.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sa_atp.switches.embedded import program_cache
from sa_atp.switches.embedded.device import Device
from sa_atp.switches.embedded.errors import PipelineError
from sa_atp.switches.embedded.p4runtime_server import packets, program_schema
from sa_atp.switches.embedded.p4runtime_server.arbitration import Arbitration, ClientStream
from sa_atp.switches.embedded.p4runtime_server.forwarding import Forwarding
from sa_atp.switches.embedded.pipeline import ROW_BYTES, Pipeline
from sa_atp.switches.p4runtime import bytestrings, codec, schema
from sa_atp.switches.p4runtime.errors import Code, Refusal, WriteRefusal
from sa_atp.switches.p4runtime.messages import p4runtime_pb2

API_VERSION = "1.3.0"  # as BMv2 reports
ENTITIES_A_MESSAGE = 1000  # of a read's answer: far below gRPC's default limit of 4 MiB


@dataclass(frozen=True, slots=True)
class Config:
    """A pushed pipeline, and its message."""

    message: Any  # p4.v1.ForwardingPipelineConfig
    pipeline: Pipeline
    forwarding: Forwarding


class Service:
    """The RPCs for one device. Thread-safe: gRPC calls it from many threads."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.arbitration = Arbitration(device.device_id)
        self._committed: Config | None = None
        self._saved: Config | None = None  # saved by VERIFY_AND_SAVE, not yet committed
        self._pushing = threading.Lock()  # one push at a time; compiling takes seconds
        device.add_packet_in_listener(self._packet_in)

    def close(self) -> None:
        self.device.remove_packet_in_listener(self._packet_in)

    def capabilities(self) -> Any:
        return p4runtime_pb2.CapabilitiesResponse(p4runtime_api_version=API_VERSION)

    # --- pipeline (section 7) -----------------------------------------------------------------------------------------

    def set_pipeline(self, request: Any) -> Any:
        """SetForwardingPipelineConfig."""
        self.arbitration.check(request)
        actions = p4runtime_pb2.SetForwardingPipelineConfigRequest
        with self._pushing:
            if request.action == actions.COMMIT:
                if self._saved is None:
                    raise Refusal(Code.FAILED_PRECONDITION, "COMMIT: no pipeline was saved (VERIFY_AND_SAVE) before")
                self._commit(self._saved)
            elif request.action == actions.VERIFY:
                self._prepare(request.config)
            elif request.action == actions.VERIFY_AND_SAVE:
                self._saved = self._prepare(request.config)
            elif request.action == actions.VERIFY_AND_COMMIT:
                self._commit(self._prepare(request.config))
            elif request.action == actions.RECONCILE_AND_COMMIT:
                self._reconcile(self._prepare(request.config))
            else:
                raise Refusal(Code.INVALID_ARGUMENT, f"action {request.action}: not an action of P4Runtime 1.3")
        return p4runtime_pb2.SetForwardingPipelineConfigResponse()

    def install(self, message: Any) -> None:
        """Installs a `p4.v1.ForwardingPipelineConfig` without a client. Raises: Refusal."""
        with self._pushing:
            self._commit(self._prepare(message))

    def _prepare(self, message: Any) -> Config:
        described = schema.from_p4info(message.p4info)
        try:
            program, _ = program_cache.loaded(message.p4_device_config, self.device.cache)
            differences = program_schema.differences(described, program_schema.from_program(program))
            if differences:  # refused before the program is compiled, which takes seconds
                more = f" (and {len(differences) - 3} more)" if len(differences) > 3 else ""
                raise Refusal(Code.INVALID_ARGUMENT, "; ".join(differences[:3]) + more)
            pipeline = self.device.prepare(message.p4_device_config)
        except PipelineError as error:
            raise Refusal(Code.INVALID_ARGUMENT, f"p4_device_config: {error}") from error
        kept = p4runtime_pb2.ForwardingPipelineConfig()
        kept.CopyFrom(message)
        return Config(kept, pipeline, Forwarding(pipeline, described))

    def _commit(self, config: Config) -> None:
        self.device.commit(config.pipeline)
        self._committed, self._saved = config, None

    def _reconcile(self, config: Config) -> None:
        """Commits a pipeline with the present entries, default actions and groups. Raises: Refusal: one does not fit."""
        before = self._committed
        if before is not None:
            outcomes = config.forwarding.write(before.forwarding.kept())
            refused = [outcome for outcome in outcomes if outcome is not None]
            if refused:
                raise Refusal(
                    Code.FAILED_PRECONDITION,
                    f"RECONCILE_AND_COMMIT: {len(refused)} of the present entries do not fit; the first: {refused[0]}",
                )
        self._commit(config)

    def get_pipeline(self, request: Any) -> Any:
        """GetForwardingPipelineConfig."""
        self._check_device(request)
        kinds = p4runtime_pb2.GetForwardingPipelineConfigRequest
        if request.response_type not in kinds.ResponseType.values():
            raise Refusal(Code.INVALID_ARGUMENT, f"response type {request.response_type}: not one of P4Runtime 1.3")
        message = self._config().message
        response = p4runtime_pb2.GetForwardingPipelineConfigResponse()
        if message.HasField("cookie"):
            response.config.cookie.CopyFrom(message.cookie)
        if request.response_type in (kinds.ALL, kinds.P4INFO_AND_COOKIE):
            response.config.p4info.CopyFrom(message.p4info)
        if request.response_type in (kinds.ALL, kinds.DEVICE_CONFIG_AND_COOKIE):
            response.config.p4_device_config = message.p4_device_config
        return response

    def _config(self) -> Config:
        """The pipeline of writes and reads: the saved one, or else the installed one."""
        config = self._saved or self._committed
        if config is None:
            raise Refusal(Code.FAILED_PRECONDITION, "no forwarding pipeline has been pushed to this switch")
        return config

    def _check_device(self, request: Any) -> None:
        if request.device_id != self.device.device_id:
            raise Refusal(
                Code.NOT_FOUND, f"there is no device {request.device_id}; this is device {self.device.device_id}"
            )

    # --- entities (sections 10 to 12) ---------------------------------------------------------------------------------

    def write(self, request: Any) -> Any:
        """The RPC Write. Raises: WriteRefusal: some updates were refused; the others have been carried out."""
        self.arbitration.check(request)
        if request.atomicity != p4runtime_pb2.WriteRequest.CONTINUE_ON_ERROR:
            raise Refusal(Code.UNIMPLEMENTED, "only CONTINUE_ON_ERROR is supported as atomicity of a write")
        forwarding = self._config().forwarding
        outcomes: list[Refusal | None] = []
        updates = []
        for message in request.updates:
            try:
                updates.append(codec.decode_update(message, forwarding.schema))
                outcomes.append(None)
            except Refusal as refusal:
                outcomes.append(refusal)
        carried_out = iter(forwarding.write(updates))
        outcomes = [next(carried_out) if outcome is None else outcome for outcome in outcomes]
        if any(outcomes):
            raise WriteRefusal(outcomes)
        return p4runtime_pb2.WriteResponse()

    def read(self, request: Any) -> Iterator[Any]:
        """The RPC Read: yields messages with entities, at least one message."""
        self._check_device(request)
        if request.role:
            raise Refusal(Code.UNIMPLEMENTED, "roles are not supported: leave the role out")
        forwarding = self._config().forwarding
        queries = [codec.decode(entity, forwarding.schema) for entity in request.entities]
        response = p4runtime_pb2.ReadResponse()
        for query in queries:
            for entity in forwarding.read(query):
                response.entities.append(codec.encode(entity, forwarding.schema))
                if len(response.entities) == ENTITIES_A_MESSAGE:
                    yield response
                    response = p4runtime_pb2.ReadResponse()
        yield response

    # --- packets (section 16) -----------------------------------------------------------------------------------------

    def stream_message(self, stream: ClientStream, request: Any) -> None:
        """Handles a message of a stream channel. Raises: Refusal: the stream must be closed."""
        kind = request.WhichOneof("update")
        if kind == "arbitration":
            self.arbitration.update(stream, request.arbitration)
        elif kind == "packet":
            try:
                self._packet_out(stream, request.packet)
            except Refusal as refusal:
                response = p4runtime_pb2.StreamMessageResponse()
                response.error.canonical_code = refusal.code
                response.error.message = str(refusal)
                if request.ByteSize() <= 2 * ROW_BYTES:
                    response.error.packet_out.packet_out.CopyFrom(request.packet)
                stream.send(response)
        else:
            response = p4runtime_pb2.StreamMessageResponse()
            response.error.canonical_code = Code.UNIMPLEMENTED
            response.error.message = f"stream messages of the kind {kind or 'none'} are not supported"
            stream.send(response)

    def _packet_out(self, stream: ClientStream, message: Any) -> None:
        if not self.arbitration.is_primary(stream):
            raise Refusal(Code.PERMISSION_DENIED, "packet-out: not primary")
        header = self._config().forwarding.schema.packet_out
        widths = {f.id: f.bits for f in header}
        values = {
            m.metadata_id: bytestrings.decode(m.value, widths.get(m.metadata_id, 64), f"metadata {m.metadata_id}")
            for m in message.metadata
        }
        packet = packets.join(header, values, message.payload)
        if len(packet) > ROW_BYTES:
            raise Refusal(Code.INVALID_ARGUMENT, f"packet-out: {len(packet)} bytes; expected at most {ROW_BYTES}")
        if self.device.cpu_port is None or self.device.pipeline is None:
            missing = "CPU port" if self.device.cpu_port is None else "pipeline in use"
            raise Refusal(Code.FAILED_PRECONDITION, f"packet-out: the switch has no {missing}")
        self.device.packet_out(packet)

    def _packet_in(self, packet: bytes) -> None:
        primary, config = self.arbitration.primary(), self._committed
        if primary is None or config is None:
            return
        try:
            values, payload = packets.split(config.forwarding.schema.packet_in, packet)
        except Refusal:
            return  # the program sent a packet without the header that it declares
        response = p4runtime_pb2.StreamMessageResponse()
        response.packet.payload = payload
        for metadata_id, value in values.items():
            response.packet.metadata.add(metadata_id=metadata_id, value=bytestrings.encode(value))
        primary.send(response)
