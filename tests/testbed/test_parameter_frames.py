"""Frames of the stream to a server of parameters: what goes in comes out, and nothing else is taken."""

import numpy as np
import pytest

from sa_atp.parameters.messages import SERVER, Failed, Gave, GoAhead, Join, Push, Task, Transfer
from sa_atp.parameters.rules import Rules, Terms
from sa_atp.parameters.server import ParameterServer
from sa_atp.testbed.parameter_frames import pack, readdressed, unpack

TASKS = (Task(3, 1, 0), Task(3, 1, 1))


def test_messages_and_what_is_beside_them() -> None:
    values = np.arange(7, dtype=np.float32)
    frame = unpack(pack(SERVER, Push(clock=3, tasks=TASKS), values))
    assert (frame.peer, frame.message) == (SERVER, Push(clock=3, tasks=TASKS))
    assert frame.values is not None
    assert frame.values.tobytes() == values.tobytes()
    assert frame.values.flags.writeable  # it is the receiver's own
    assert unpack(pack(2, Gave(order=1, tasks=()))) == (2, Gave(order=1, tasks=()), None)
    samples = unpack(pack(2, Transfer(order=4, tasks=TASKS), np.zeros(5, np.uint8)))
    assert samples == (2, Transfer(order=4, tasks=TASKS), None)


def test_a_frame_is_handed_on_with_its_sender() -> None:
    data = pack(2, Transfer(order=4, tasks=TASKS), np.arange(5, dtype=np.uint8))
    assert readdressed(data, 7) == pack(7, Transfer(order=4, tasks=TASKS), np.arange(5, dtype=np.uint8))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0",
        b"\0\0\0\x09abc",
        b"\0\0\0\x01\xc0",
        pack(0, GoAhead(clock=0, version=0, tasks=()), np.zeros(3, np.uint8)),
    ],
)
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"frame|message|float32"):
        unpack(data)


@pytest.mark.parametrize(
    ("tasks", "values"),
    [
        ((Task(0, 2, 0),), 3),
        ((Task(0, 0, 4),), 3),
        ((Task(-1, 0, 0),), 3),
        ((), 3),
        ((Task(0, 0, 0),) * 2, 3),
        (TASKS, 2),
    ],
)
def test_what_is_no_update_is_refused_and_changes_nothing(tasks: tuple[Task, ...], values: int) -> None:
    terms = Terms(world_size=2, micro_batches=4, learning_rate=0.1)
    server = ParameterServer(Rules(terms))
    server.receive(0, Join(), np.zeros(3, np.float32), 0)
    server.receive(1, Join(), None, 0)
    (answer,) = server.receive(0, Push(clock=0, tasks=tasks), np.ones(values, np.float32), 1)
    assert isinstance(answer.message, Failed)
    assert "rank 0" in answer.message.reason
    assert server.store is not None
    assert not server.store.values.any()
    assert server.tasks_in == 0
