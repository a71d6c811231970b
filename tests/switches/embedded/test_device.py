"""The switch without its sockets: replacing the pipeline, the CPU port, and two threads at once."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sa_atp.basics.errors import UserError
from sa_atp.switches.control.writer import LocalWriter
from sa_atp.switches.embedded.device import Device
from sa_atp.switches.embedded.errors import PipelineError
from sa_atp.switches.embedded.pipeline import Packets, Pipeline
from sa_atp.switches.p4runtime.entities import Exact, TableEntry, Update, UpdateKind

P4 = Path(__file__).resolve().parents[2] / "p4"
CPU_PORT = 255
FRAME = bytes.fromhex("020000000002 020000000001 88b5") + b"payload"


def device(**options: object) -> Device:
    return Device(clock=lambda: 1_000, compiled=False, **{"cpu_port": CPU_PORT, **options})  # type: ignore[arg-type]


def punting(**options: object) -> Device:
    made = device(**options)
    made.install((P4 / "punt.json").read_bytes())
    return made


def send_to_port_9(pipeline: Pipeline, kind: UpdateKind, **which: Any) -> None:
    entry = TableEntry(table="by_type", action="send", params={"port": 9}, **which)
    LocalWriter(pipeline).write([Update(kind, entry)])


def run(made: Device, *frames: bytes, port: int = 3) -> list[tuple[int, bytes]]:
    data = np.zeros((len(frames), 200), np.uint8)
    for row, frame in zip(data, frames, strict=True):
        row[: len(frame)] = np.frombuffer(frame, np.uint8)
    out = made.process(data, np.array([len(f) for f in frames]), np.full(len(frames), port), 0)
    return listed(out)


def listed(out: Packets) -> list[tuple[int, bytes]]:
    return [(int(out.ports[i]), out.packet(i)) for i in range(len(out))]


def test_packets_before_a_pipeline_are_dropped_and_counted() -> None:
    made = device()
    assert run(made, FRAME, FRAME) == []
    assert made.dropped_without_pipeline == 2
    made.install((P4 / "punt.json").read_bytes())
    run(made, FRAME)
    assert made.dropped_without_pipeline == 2


def test_packets_for_the_cpu_port_go_to_the_listeners() -> None:
    made = punting()
    heard: list[bytes] = []
    made.add_packet_in_listener(heard.append)
    pipeline = made.pipeline
    assert pipeline is not None
    send_to_port_9(pipeline, UpdateKind.INSERT, match={"ether_type": Exact(0x0800)})
    routed = FRAME[:12] + b"\x08\x00" + FRAME[14:]

    assert run(made, routed, FRAME, routed) == [(9, routed), (9, routed)]
    assert heard == [bytes([0x01, 0x80, 0x88, 0xB5]) + FRAME]  # port 3 in 9 bits, padding, type

    made.remove_packet_in_listener(heard.append)
    run(made, FRAME)
    assert len(heard) == 1


def test_without_a_cpu_port_its_number_is_a_port_like_any_other() -> None:
    assert [port for port, _ in run(punting(cpu_port=None), FRAME)] == [CPU_PORT]


def test_packets_caused_by_a_packet_out_are_emitted() -> None:
    made = punting()
    emitted: list[tuple[int, bytes]] = []
    made.packet_out(b"\x00\x07" + FRAME)  # nobody listens: it is lost
    made.emit = lambda out: emitted.extend(listed(out))
    made.packet_out(b"\x00\x07" + FRAME)
    assert emitted == [(7, FRAME)]


def test_a_packet_out_leaves_the_last_batch_of_the_io_loop_alone() -> None:
    made = punting(cpu_port=CPU_PORT)
    pipeline = made.pipeline
    assert pipeline is not None
    send_to_port_9(pipeline, UpdateKind.MODIFY, is_default=True)
    data = np.zeros((1, 200), np.uint8)
    data[0, : len(FRAME)] = np.frombuffer(FRAME, np.uint8)
    out = made.process(data, np.array([len(FRAME)]), np.array([3]), 0)
    made.emit = lambda _: None
    made.packet_out(b"\x00\x07" + b"\xff" * 60)
    assert listed(out) == [(9, FRAME)]


def test_a_packet_out_needs_a_cpu_port_and_a_pipeline() -> None:
    with pytest.raises(UserError, match="without a CPU port"):
        punting(cpu_port=None).packet_out(FRAME)
    with pytest.raises(UserError, match="no pipeline"):
        device().packet_out(FRAME)


def test_a_program_that_does_not_load_leaves_the_present_one() -> None:
    made = punting()
    before = made.pipeline
    with pytest.raises(PipelineError, match="not BMv2 JSON"):
        made.install(b"{}")
    assert made.pipeline is before
    with pytest.raises(TypeError):
        made.commit(object())  # type: ignore[arg-type]


@pytest.mark.parametrize("port", [0, -1, 511])
def test_the_cpu_port_is_a_port(port: int) -> None:
    with pytest.raises(UserError, match="CPU port"):
        device(cpu_port=port)


def test_swapping_and_packet_outs_while_packets_run() -> None:
    """Every batch is complete and of one pipeline, whatever other threads do."""
    made = punting()
    config = (P4 / "punt.json").read_bytes()
    heard: list[bytes] = []
    made.add_packet_in_listener(heard.append)
    failures: list[BaseException] = []

    def interfere() -> None:
        try:
            for _ in range(10):
                made.packet_out(b"\x00\x07" + FRAME)
                made.install(config)
        except BaseException as error:
            failures.append(error)

    others = [threading.Thread(target=interfere) for _ in range(2)]
    for thread in others:
        thread.start()
    batches = 0
    while any(thread.is_alive() for thread in others) or batches == 0:
        assert run(made, FRAME, FRAME) == []
        batches += 1
    for thread in others:
        thread.join()
    assert failures == []
    assert len(heard) == 2 * batches
    assert set(heard) == {bytes([0x01, 0x80, 0x88, 0xB5]) + FRAME}


def test_few_long_frames_after_many_short_ones() -> None:
    """Output buffers grow in one dimension at a time; a switch has large ones from the beginning."""
    pipeline = Pipeline.from_file(P4 / "punt.json", compiled=False)
    send_to_port_9(pipeline, UpdateKind.INSERT, match={"ether_type": Exact(0x0800)})
    short = FRAME[:12] + b"\x08\x00" + b"short"
    rows = np.tile(np.frombuffer(short, np.uint8), (200, 1))
    lengths, ports = np.full(200, len(short)), np.full(200, 3)
    assert listed(pipeline.process(rows, lengths, ports, 0)) == [(9, short)] * 200
    assert pipeline.process_one(short + bytes(1400), 3, 0) == [(9, short + bytes(1400))]
    assert listed(pipeline.process(rows, lengths, ports, 0)) == [(9, short)] * 200
