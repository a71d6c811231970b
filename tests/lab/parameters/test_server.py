"""The server of parameters: allowed messages, and errors that end a job, in one line that names the rank."""

from collections.abc import Callable
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.basics.arrays import Values
from sa_atp.lab.parameters.rules.falcon import EnforcedFalconRules, FalconRules
from sa_atp.lab.parameters.rules.messages import (
    SERVER,
    AnyMessage,
    Applied,
    Arrived,
    Begun,
    Gave,
    GiveUp,
    GoAhead,
    JobFailed,
    JoinTraining,
    Outgoing,
    Over,
    Pull,
    Push,
    Task,
    TaskComputed,
    Tasks,
)
from sa_atp.lab.parameters.rules.rules import ConSgdRules, DynSgdRules, Rules, SspRules, Terms
from sa_atp.lab.parameters.rules.server import ParamsServer

RULES = (Rules, SspRules, ConSgdRules, DynSgdRules, FalconRules, EnforcedFalconRules)
WORKERS, MICRO_BATCHES, VALUES = 3, 2, 5
ZEROS: Values = np.zeros(VALUES, np.float32)


def made(rules: type[Rules] = SspRules) -> ParamsServer:
    terms = Terms(world_size=WORKERS, micro_batches=MICRO_BATCHES, learning_rate=0.1, bound=2, clocks=4)
    return ParamsServer(rules(terms))


def begun(rules: type[Rules] = SspRules) -> tuple[ParamsServer, Tasks]:
    """A job in which all workers have begun step 0. Returns: the server, and rank 1's tasks."""
    server = made(rules)
    for rank in range(WORKERS):
        server.receive(rank, JoinTraining(), ZEROS.copy() if rank == 0 else None, 0)
    answers = [each for rank in range(WORKERS) for each in server.receive(rank, Pull(clock=0), None, 0)]
    [mine] = [each.message.tasks for each in answers if each.to == 1 and isinstance(each.message, GoAhead)]
    return server, mine


def reason(says: list[Outgoing]) -> str:
    """The reason that all ranks are told, the failing one included."""
    assert [each.to for each in says] == list(range(WORKERS))
    [said] = {each.message.reason for each in says if isinstance(each.message, JobFailed)}
    assert "\n" not in said
    return str(said)


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_never_applied(rules: type[Rules], value: float) -> None:
    server, tasks = begun(rules)
    update = ZEROS.copy()
    update[[2, 4]] = value
    says = server.receive(1, Push(clock=0, tasks=tasks), update, 5)
    assert reason(says) == (
        "rank 1: its update of step 0 has 2 of 5 values that are NaN or infinite, the first at index 2"
    )
    assert server.store is not None
    assert (server.store.version, server.store.values.tolist(), server.tasks_in) == (0, [0.0] * VALUES, 0)
    assert server.is_over
    # nothing that comes after it counts
    assert server.receive(2, Push(clock=0, tasks=tasks), ZEROS, 6) == []


@pytest.mark.parametrize("rules", RULES)
def test_parameters_stay_finite(rules: type[Rules]) -> None:
    """Finite updates whose effect is too large for float32 end the job at the server, before a worker has the values."""
    server, tasks = begun(rules)
    assert server.store is not None
    server.store.values[:] = 3.4e38
    said: list[Outgoing] = []
    for rank in range(WORKERS):
        own = tuple(Task(clock=0, shard=rank, micro_batch=task.micro_batch) for task in tasks)
        said = server.receive(rank, Push(clock=0, tasks=own), np.full(VALUES, -3e38, np.float32), 5) or said
        assert np.isfinite(server.store.values).all()
    assert "with its update the parameters have 5 of 5 values that are NaN or infinite" in reason(said)


def test_parameters_to_begin_with_are_finite() -> None:
    server = made()
    says = server.receive(0, JoinTraining(), np.array([0, np.nan], np.float32), 0)
    assert "rank 0: the parameters that it begins with have 1 of 2 values that are NaN" in reason(says)


Say = Callable[[ParamsServer, Tasks], list[Outgoing]]


def pushes(rank: int = 1, clock: int = 0, update: Values | None = ZEROS, **changed: Any) -> Say:
    return lambda server, tasks: server.receive(rank, Push(clock=clock, **{"tasks": tasks, **changed}), update, 5)


def says(message: Any, rank: int = 1, values: Values | None = None) -> Say:
    return lambda server, _: server.receive(rank, message, values, 5)


@pytest.mark.parametrize(
    ("say", "why"),
    [
        (pushes(update=None), "its update of step 0 has 0 values, and the parameters 5"),
        (pushes(update=ZEROS[:4]), "its update of step 0 has 4 values, and the parameters 5"),
        (pushes(clock=7), "an update of step 7, while it is in step 0"),
        (pushes(clock=-1), "an update of step -1, while it is in step 0"),
        (pushes(tasks=()), "its update of step 0 has no tasks"),
        (pushes(tasks=(Task(9, 1, 0),)), "no worker has begun"),
        (pushes(tasks=(Task(1, 1, 0),)), "no worker has begun"),
        (pushes(tasks=(Task(0, 3, 0),)), "no worker has begun"),
        (pushes(tasks=(Task(0, 1, 0), Task(0, 1, 0))), "was pushed twice"),
        (says(Pull(clock=0)), "it asks for step 0, and step 1 is its next"),  # a second time
        (says(Pull(clock=2)), "it asks for step 2, and step 1 is its next"),
        (says(JoinTraining()), "it joins a second time"),
        (says(GoAhead(clock=0, version=9, tasks=())), "a message GoAhead, which workers do not send to the server"),
        (says(Over()), "a message Over, which"),
        (says(Begun(number=1)), "a message Begun, which"),
        (lambda server, _: server.forward(1, 2, Over()), "a message Over for rank 2, which workers do not send"),
        (lambda server, _: server.forward(1, 9, Begun(number=1)), "a message Begun for rank 9, which"),
    ],
)
def test_a_forbidden_message_ends_the_job_and_names_the_rank(say: Say, why: str) -> None:
    server, tasks = begun()
    said = reason(say(server, tasks))
    assert said.startswith("rank 1: ")
    assert why in said
    assert server.failure == said
    assert server.tasks_in == 0


def test_a_replayed_update_is_refused() -> None:
    server, tasks = begun()
    [answer, *_] = pushes()(server, tasks)
    assert answer.message == Applied(version=1)
    assert "was pushed twice" in reason(pushes()(server, tasks))
    assert server.tasks_in == len(tasks)


def test_messages_before_joining_are_refused() -> None:
    for message in (Pull(clock=0), Push(clock=0, tasks=(Task(0, 1, 0),)), TaskComputed(clock=0, left=0, took_us=1)):
        server = made()
        assert "rank 1: a message" in reason(server.receive(1, message, ZEROS, 0))
    assert "rank 2: it joins with parameters, as rank 0 does" in reason(made().receive(2, JoinTraining(), ZEROS, 0))
    assert "rank 0: it joins without parameters" in reason(made().receive(0, JoinTraining(), None, 0))


@pytest.mark.parametrize("message", [Gave(order=5, tasks=()), Arrived(order=5)])
def test_orders_that_were_not_given_are_not_answered(message: Any) -> None:
    server, _ = begun(FalconRules)
    assert "order 5, which" in reason(says(message)(server, ()))


def test_an_order_is_answered_once_by_its_receiver() -> None:
    """Rank 1 is slow, and gets an order to give tasks away."""
    terms = Terms(world_size=2, micro_batches=16, learning_rate=0.1, clocks=4)
    server = ParamsServer(FalconRules(terms))
    for rank in range(2):
        server.receive(rank, JoinTraining(), ZEROS.copy() if rank == 0 else None, 0)
        server.receive(rank, Pull(clock=0), None, 0)
    says: list[Outgoing] = []
    for n in range(1, 16):
        says += server.receive(0, TaskComputed(clock=0, left=15 - n, took_us=1000), None, 1000 * n)
        if n % 5 == 0:
            says += server.receive(1, TaskComputed(clock=0, left=15, took_us=5000), None, 1000 * n)
    order = next(each for each in says if each.to == 1)
    number: int = cast(GiveUp, order.message).order
    assert not [each for each in server.receive(1, Gave(order=number, tasks=()), None, 20_000) if each.to == 0]
    again = server.receive(1, Gave(order=number, tasks=()), None, 20_000)
    assert {cast(JobFailed, each.message).reason for each in again} == {
        f"rank 1: it has given 0 tasks away by order {number}, which it was not given"
    }


numbers = st.integers(-2, 6)
any_tasks = st.lists(st.builds(Task, numbers, numbers, numbers), max_size=3).map(tuple)
any_message = st.one_of(
    st.builds(JoinTraining),
    st.builds(Pull, clock=numbers),
    st.builds(Push, clock=numbers, tasks=any_tasks),
    st.builds(TaskComputed, clock=numbers, left=numbers, took_us=st.sampled_from([0, 1, 10**6, 1 << 53])),
    st.builds(Gave, order=numbers, tasks=any_tasks),
    st.builds(Arrived, order=numbers),
    st.builds(Begun, number=numbers),
    st.just(Over()),
)
any_values = st.sampled_from([None, ZEROS, ZEROS[:2], np.full(VALUES, np.nan, np.float32)])


@given(
    st.sampled_from(RULES),
    st.lists(st.tuples(st.integers(0, WORKERS - 1), any_message, any_values), max_size=12),
    st.booleans(),
)
def test_any_message_is_handled_or_ends_the_job(
    rules: type[Rules], said: list[tuple[int, Any, Values | None]], is_begun: bool
) -> None:
    server = begun(rules)[0] if is_begun else made(rules)
    for now, (rank, message, values) in enumerate(said):
        over_before = server.is_over
        answers = server.receive(rank, message, values, 1000 * now)
        assert all(each.to != SERVER for each in answers)
        if over_before:
            assert not answers
        elif server.failure:
            assert reason(answers).startswith(f"rank {rank}: ")
    if server.store is not None:
        assert np.isfinite(server.store.values).all()


def test_numbers_in_messages_have_bounds() -> None:
    for wrong in (
        {"type": "Progress", "clock": 0, "left": 0, "took_us": -1},
        {"type": "Report", "clock": 0, "done": 1.5},
    ):
        with pytest.raises(msgspec.ValidationError, match=r"took_us|done"):
            msgspec.msgpack.decode(msgspec.msgpack.encode(wrong), type=AnyMessage)
