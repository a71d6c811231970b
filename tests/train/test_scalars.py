"""`SaAtpState.write_scalars`: what a rank did between two calls, for TensorBoard."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
import torch

from sa_atp.ddp import SaAtpState
from sa_atp.net.parameter_server.server import ServerProcess
from sa_atp.protocol.packets.lateness_messages import JobLateness
from sa_atp.protocol.server.server_events import ServerSettings
from sa_atp.train.scalars import scalars

ALWAYS = {"steps a second", "computing", "sending", "waiting", "helped micro-batches", "window", "round trip, ms",
          "fragments sent again", "fragments lost"}  # fmt: skip


@pytest.fixture
def states() -> Iterator[list[SaAtpState]]:
    """Two ranks of a job of a real parameter server."""
    server = ServerProcess(ServerSettings(aggregates=False), ("127.0.0.1", 0), random.Random(1).getrandbits)
    server.start()
    url = "udp://{}:{}".format(*server.address)
    states = [SaAtpState(url, rank=rank, world_size=2) for rank in range(2)]
    yield states
    for state in states:
        state.close()
    server.stop()


def train(states: list[SaAtpState], steps: int) -> None:
    with ThreadPoolExecutor(2) as pool:
        for _ in range(steps):
            list(pool.map(lambda state: state.communicator.all_reduce(torch.ones(1000)), states))


class Written:
    """A writer that keeps what it is given."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, int | None], float] = {}

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        self.values[tag, global_step] = scalar_value

    def of(self, step: int) -> dict[str, float]:
        return {tag.partition("/")[2]: value for (tag, at), value in self.values.items() if at == step}


def test_each_call_is_about_the_time_since_the_last_one(states: list[SaAtpState]) -> None:
    written = Written()
    train(states, 3)
    states[0].write_scalars(written, 3)
    states[0].write_scalars(written, 4)
    assert written.of(3).keys() >= ALWAYS
    assert written.of(3)["steps a second"] > 0
    assert written.of(3)["computing"] + written.of(3)["waiting"] == pytest.approx(1)
    assert written.of(4)["steps a second"] == 0
    assert written.of(4)["waiting"] == 0


def test_the_window_is_the_smaller_of_network_and_slots(states: list[SaAtpState]) -> None:
    train(states, 1)
    now = msgspec.structs.replace(states[0].communicator.state(), window=10, slot_window=4)
    assert scalars((now, JobLateness()), None)["sa_atp/window"] == 4


def test_tensorboard_reads_them_again(states: list[SaAtpState], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard.compat.proto.event_pb2", exc_type=ImportError)  # needs a new protobuf
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    train(states, 2)
    with SummaryWriter(tmp_path) as writer:
        states[1].write_scalars(writer, 7)
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert {tag.partition("/")[2] for tag in read.Tags()["scalars"]} >= ALWAYS
    assert [(event.step, event.value > 0) for event in read.Scalars("sa_atp/steps a second")] == [(7, True)]
