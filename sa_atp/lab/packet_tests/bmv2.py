"""A packet test on BMv2, without interfaces and without root.

Packets go through the data plane's gRPC interface, one stream per packet: BMv2 ends a stream when it has processed all
packets of it, so all its output has arrived by then. Tables are filled through Thrift, because tests have only the BMv2
JSON, and P4Runtime would need the P4Info, too.
"""

import contextlib
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool

from sa_atp.lab.runs import bmv2
from sa_atp.lab.runs.bmv2 import START_TIMEOUT_S, CommandLine, free_port, start_arguments
from sa_atp.lab.runs.processes import Group, Process, ProcessError
from sa_atp.switches.embedded.p4runtime_server import keys
from sa_atp.switches.embedded.stf.names import CounterName, ProgramNames
from sa_atp.switches.p4runtime.entities import TableEntry
from sa_atp.switches.p4runtime.messages import class_maker
from sa_atp.switches.p4runtime.rpc import grpc

PACKET_STREAM = "/p4.bm.DataplaneInterface/PacketStream"
PACKET_TIMEOUT_S = 20.0
WAIT_S = 0.1
LOWEST_PRECEDENCE = 1 << 30  # in BMv2 the smaller priority wins, in tests the larger one

# p4.bm.PacketStreamRequest and PacketStreamResponse have these two fields in common, and no package has their classes.
_FILE = descriptor_pb2.FileDescriptorProto(name="packet.proto", package="p4.bm")
_FIELDS = _FILE.message_type.add(name="Packet").field
_FIELDS.add(name="port", number=3, type=descriptor_pb2.FieldDescriptorProto.TYPE_UINT32, label=1)
_FIELDS.add(name="packet", number=4, type=descriptor_pb2.FieldDescriptorProto.TYPE_BYTES, label=1)
_POOL = descriptor_pool.DescriptorPool()
_POOL.AddSerializedFile(_FILE.SerializeToString())
Packet = class_maker(_POOL)(_POOL.FindMessageTypeByName("p4.bm.Packet"))


@contextlib.contextmanager
def running(json_path: Path, names: ProgramNames) -> Iterator["Bmv2Target"]:
    """Runs BMv2 with a program. Raises: MissingPartError, ProcessError."""
    with tempfile.TemporaryDirectory(prefix="sa_atp-bmv2-") as scratch:
        folder = Path(scratch)
        packets = f"unix:{folder}/packets"
        thrift_port = free_port()
        arguments = start_arguments(
            json_path.resolve(),
            device_id=0,
            thrift_port=thrift_port,
            grpc=f"unix:{folder}/p4runtime",
            options={"dp-grpc-server-addr": packets},
        )
        options = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1)]
        with Group() as group:
            switch = group.add(bmv2.start(arguments, folder / "log"))
            with CommandLine(switch, thrift_port) as commands, grpc.insecure_channel(packets, options) as channel:
                try:
                    grpc.channel_ready_future(channel).result(START_TIMEOUT_S)
                except grpc.FutureTimeoutError:
                    raise switch.failure("did not open its packet interface") from None
                yield Bmv2Target(switch, commands, channel, names)


class Bmv2Target:
    def __init__(self, switch: Process, commands: CommandLine, channel: Any, names: ProgramNames) -> None:
        self._switch = switch
        self._commands = commands
        self._names = names
        self._stream = channel.stream_stream(PACKET_STREAM, Packet.SerializeToString, Packet.FromString)

    def send(self, port: int, packet: bytes) -> list[tuple[int, bytes]]:
        try:
            answers = self._stream(iter([Packet(port=port, packet=packet)]), timeout=PACKET_TIMEOUT_S)
            return [(answer.port, answer.packet) for answer in answers]
        except grpc.RpcError as error:
            self._switch.check()
            raise self._switch.failure(f"did not finish a packet ({error.code().name})") from None

    def let_time_pass(self) -> None:
        time.sleep(WAIT_S)

    # --- tables -------------------------------------------------------------------------------------------------------

    def add(self, entry: TableEntry) -> int:
        table = self._names.schema.table(entry.table)
        matched = zip(table.match, keys.key(table, entry), strict=True)
        words = ["table_add", table.name, entry.action, *(_match(field.kind, *pair) for field, pair in matched)]
        words += ["=>", *self._data(entry)]
        if table.needs_priority:
            words.append(str(LOWEST_PRECEDENCE - entry.priority))
        return self._handle(" ".join(words))

    def set_default(self, entry: TableEntry) -> None:
        self._commands.do(" ".join(["table_set_default", entry.table, entry.action, *self._data(entry)]))

    def _data(self, entry: TableEntry) -> list[str]:
        schema = self._names.schema
        action = schema.table_action(schema.table(entry.table), entry.action).action
        return [str(value) for value in keys.data(action, entry.params)]

    def remove_all(self) -> None:
        for table in self._names.changeable_tables():
            self._commands.do(f"table_clear {table}")

    def _handle(self, command: str) -> int:
        answer = self._commands.do(command)
        found = re.search(r"with handle (\d+)", answer)
        if found is None:
            raise ProcessError(f"BMv2 gave no handle for `{command}`; it said: {answer or 'nothing'}")
        return int(found[1])

    # --- the rest -----------------------------------------------------------------------------------------------------

    def create_group(self, group: int) -> None:
        self._commands.do(f"mc_mgrp_create {group}")

    def create_node(self, copy: int, ports: list[int]) -> None:
        self._handle(" ".join(["mc_node_create", str(copy), *(str(port) for port in ports)]))

    def update_node(self, node: int, ports: list[int]) -> None:
        self._commands.do(" ".join(["mc_node_update", str(node), *(str(port) for port in ports)]))

    def associate(self, group: int, node: int) -> None:
        self._commands.do(f"mc_node_associate {group} {node}")

    def count(self, counter: CounterName, cell: int) -> tuple[int, int]:
        answer = self._commands.do(f"counter_read {counter.name} {cell}")
        found = re.search(r"\((\d+) bytes, (\d+) packets\)", answer)
        if found is None:
            raise ProcessError(f"BMv2 did not print counter {counter.name}; it said: {answer or 'nothing'}")
        return int(found[2]), int(found[1])

    def command(self, words: list[str]) -> str:
        answer = self._commands.do(" ".join(words))
        return answer if words[0].endswith(("_read", "_get", "_get_rates")) else ""


def _match(kind: str, first: int, second: int) -> str:
    """A key in the format of the command line."""
    if kind == "lpm":
        return f"0x{first:x}/{second.bit_count()}"
    if kind in ("ternary", "optional"):
        return f"0x{first:x}&&&0x{second:x}"
    if kind == "range":
        return f"{first}->{second}"
    return f"0x{first:x}"
