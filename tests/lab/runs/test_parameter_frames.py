"""Frames of the stream to a server of parameters: round trip, and refusal of malformed ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.lab.parameters import frames as parameter_frames
from sa_atp.lab.parameters.frames import FrameError, assemble, pack
from sa_atp.lab.parameters.rules.messages import SERVER, Gave, GoAhead, Push, Task, Transfer

TASKS = (Task(3, 1, 0), Task(3, 1, 1))


def test_messages_with_payloads() -> None:
    values = np.arange(7, dtype=np.float32)
    samples = np.arange(5, dtype=np.uint8)
    pushed, gave, moved = assemble(
        [
            *pack(SERVER, Push(clock=3, tasks=TASKS), values),
            *pack(2, Gave(order=1, tasks=())),
            *pack(2, Transfer(order=4, tasks=TASKS), samples),
        ]
    )
    assert (pushed.peer, pushed.message) == (SERVER, Push(clock=3, tasks=TASKS))
    assert pushed.values is not None
    assert pushed.values.tobytes() == values.tobytes()
    assert pushed.values.flags.writeable  # it is the receiver's own
    assert (gave.peer, gave.message, gave.values, len(gave.payload)) == (2, Gave(order=1, tasks=()), None, 0)
    assert (moved.message, moved.values, moved.payload.tobytes()) == (
        Transfer(order=4, tasks=TASKS), None, samples.tobytes()
    )  # fmt: skip


@given(values=st.integers(0, 40))
def test_long_payloads_are_split(values: int) -> None:
    payload = np.arange(values, dtype=np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parameter_frames, "CHUNK", 16)
        parts = list(pack(SERVER, Push(clock=0, tasks=TASKS), payload))
        [frame] = assemble(parts)
    assert len(parts) == max(1, -(-4 * values // 16))
    assert frame.payload.tobytes() == payload.tobytes()


def test_a_piece_of_another_length_is_refused() -> None:
    first, second = pack(SERVER, Push(clock=0, tasks=TASKS), np.zeros((1 << 18) + 2, np.float32))
    assert not list(assemble([first]))  # the stream has ended before the frame is whole
    with pytest.raises(FrameError, match=r"^7 bytes of payload, expected 8$"):
        list(assemble([first, second[:-1]]))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0",
        b"\0\0\0\x09abc",
        b"\0\0\0\x01\xc0",
        next(pack(0, GoAhead(clock=0, version=0, tasks=()), np.zeros(3, np.uint8))),
    ],
)
def test_malformed_frames_are_refused(data: bytes) -> None:
    with pytest.raises(FrameError, match=r"frame|message|float32"):
        list(assemble([data]))


def test_a_payload_beyond_the_limit_is_refused_by_its_head() -> None:
    first = next(pack(SERVER, Push(clock=0, tasks=TASKS), np.zeros(1 << 20, np.float32)))
    with pytest.raises(FrameError, match=r"^4194304 bytes of payload with a message Push, expected at most 12$"):
        next(assemble([first], lambda _: 12))
