"""Installing the parameter server's jobs on switches, and checking the switches meanwhile."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest

from sa_atp.basics.errors import SaAtpError, UserError
from sa_atp.net.parameter_server import installer as installer_module
from sa_atp.net.parameter_server.installer import Installer
from sa_atp.protocol.server.server_events import Admit, Retire
from sa_atp.switches import artefacts
from sa_atp.switches.control import fabric, jobs
from sa_atp.switches.control.client import P4RuntimeClient
from sa_atp.switches.control.errors import NoPipeline, RefusedUpdate, UpdateRefusedError
from sa_atp.switches.control.fabric import Keeper, SwitchPlace
from sa_atp.switches.control.job_tables import JobTables, Problems
from sa_atp.switches.control.writer import LocalWriter
from sa_atp.switches.embedded.device import Device
from sa_atp.switches.embedded.loading import load
from sa_atp.switches.embedded.p4runtime_server.server import P4RuntimeServer
from sa_atp.switches.embedded.pipeline import Pipeline
from sa_atp.switches.p4runtime.entities import Entity, Exact, TableEntry, Update

from .conftest import admission

TIMEOUT_S = 30.0
ATTACHMENT = fabric.Attachment(default_port=1)
NO_ROOM = 65536 - 64  # slots that a packet can name, and no switch has


@dataclass
class Outcomes:
    """The installer's reports about jobs."""

    told: list[tuple[int, str]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def tell(self, job: Admit, what: str) -> None:
        with self.changed:
            self.told.append((job.number, what))
            self.changed.notify_all()

    def wait(self, done: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(done, TIMEOUT_S), self.told

    def wait_for(self, count: int) -> None:
        self.wait(lambda: len(self.told) == count)

    def installer(self, *keepers: Keeper) -> Installer:
        return Installer(keepers, admitted=lambda job, _: self.tell(job, "admitted"), refused=self.tell)


@pytest.fixture
def outcomes() -> Outcomes:
    return Outcomes()


class Held(Keeper):
    """A switch that does not answer until the test allows it, and records its requests."""

    def __init__(self, problem: Exception | None = None) -> None:
        super().__init__(SwitchPlace(grpc="nowhere", attachment=ATTACHMENT), artefacts.program())
        self.problem = problem
        self.may_go_on, self.asked = threading.Event(), threading.Semaphore(0)
        self.calls: list[tuple[list[int], list[int]]] = []
        self.closed_by: list[threading.Thread] = []

    def check(self) -> str | None:
        return None

    def close(self) -> None:
        self.closed_by.append(threading.current_thread())

    def apply_jobs(self, installed: Sequence[Admit], removed: Collection[int]) -> Problems:
        self.calls.append(([job.number for job in installed], list(removed)))
        self.asked.release()
        assert self.may_go_on.wait(TIMEOUT_S)
        problem, self.problem = self.problem, None
        if isinstance(problem, UserError):
            return {job.number: problem for job in installed}
        if problem is not None:
            raise problem
        return {}


@pytest.mark.parametrize(
    "problem", [UserError("no room"), SaAtpError("no answer"), ValueError("what nobody thought of")]
)
def test_after_a_problem_the_next_job_is_served(problem: Exception, outcomes: Outcomes) -> None:
    keeper = Held(problem)
    keeper.may_go_on.set()
    installer = outcomes.installer(keeper)
    for number in (1, 2):
        installer.submit(admission(number))
        outcomes.wait_for(number)
    installer.close()
    assert outcomes.told[0][0] == 1
    assert str(problem) in outcomes.told[0][1]
    assert outcomes.told[1] == (2, "admitted")


def test_a_busy_switch_is_left_to_its_thread(outcomes: Outcomes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A push of a program may take longer than the server waits at its end."""
    monkeypatch.setattr(installer_module, "CLOSE_S", 0.0)
    keeper = Held()
    installer = outcomes.installer(keeper)
    installer.submit(admission(1))
    assert keeper.asked.acquire(timeout=TIMEOUT_S)
    installer.close()
    assert keeper.closed_by == []
    keeper.may_go_on.set()
    outcomes.wait_for(1)
    (switch,) = installer._switches
    switch.thread.join(TIMEOUT_S)
    assert keeper.closed_by == [switch.thread]


def test_finished_jobs_are_not_installed_and_waiting_ones_are_at_once(outcomes: Outcomes) -> None:
    """Events while a switch is busy: finished jobs, one of them restarted, and jobs that wait."""
    keeper = Held()
    installer = outcomes.installer(keeper)
    installer.submit(admission(1))
    assert keeper.asked.acquire(timeout=TIMEOUT_S)
    for number in (2, 3, 4, 5):
        installer.submit(admission(number))
    for number in (2, 3):
        installer.submit(Retire(number, 1))
    installer.submit(admission(3, epoch=2))
    installer.submit(Retire(1, 1))  # while it is being installed
    keeper.may_go_on.set()
    outcomes.wait(lambda: len(outcomes.told) == 3)
    installer.close()
    assert keeper.calls == [([1], []), ([3, 4, 5], [2, 1])]
    assert Counter(outcomes.told) == {(number, "admitted"): 1 for number in (3, 4, 5)}


def test_a_switch_that_does_not_answer_keeps_no_other_waiting(outcomes: Outcomes) -> None:
    """A job is installed when all switches have it; each gets it at once."""
    slow, quick = Held(), Held()
    quick.may_go_on.set()
    installer = outcomes.installer(slow, quick)
    installer.submit(admission(1))
    installer.submit(admission(2))
    for keeper in (slow, quick):
        assert keeper.asked.acquire(timeout=TIMEOUT_S)
    while [number for numbers, _ in quick.calls for number in numbers] != [1, 2]:
        assert quick.asked.acquire(timeout=TIMEOUT_S)
    assert outcomes.told == []
    slow.may_go_on.set()
    outcomes.wait(lambda: len(outcomes.told) == 2)
    installer.close()


# --- a real switch --------------------------------------------------------------------------------------------------------


@pytest.fixture
def switch() -> Iterator[P4RuntimeServer]:
    with P4RuntimeServer(Device(clock=lambda: 0, compiled=False), "127.0.0.1:0") as server:
        yield server


def keeper_of(address: str) -> Keeper:
    return Keeper(SwitchPlace(grpc=address, attachment=ATTACHMENT), artefacts.program())


def installed_at(address: str) -> set[int]:
    with P4RuntimeClient(address, read_only=True) as client:
        try:
            return {job.job for job in jobs.read_jobs(client) if job.spec is not None}
        except NoPipeline:
            return set()


def test_a_job_that_cannot_start_does_not_keep_a_switch_from_being_put_back(outcomes: Outcomes) -> None:
    """Its ranks ask five times a second, so the queue is never empty."""
    with P4RuntimeServer(Device(clock=lambda: 0, compiled=False), "127.0.0.1:0") as first:
        address, keeper = first.address, keeper_of(first.address)
        keeper.bring_up()
        installer = outcomes.installer(keeper)
        installer.submit(admission(1))
        outcomes.wait(lambda: outcomes.told == [(1, "admitted")])
    asked = threading.Event()

    def ask() -> None:
        epoch = 1
        while not asked.wait(0.05):
            installer.submit(admission(2, epoch, slot_base=NO_ROOM))
            installer.submit(Retire(2, epoch))
            epoch = (epoch + 1) & 0xFF
            installer.submit(admission(2, epoch, slot_base=NO_ROOM))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        device = Device(clock=lambda: 0, compiled=False)
        with P4RuntimeServer(device, address):
            until = time.monotonic() + TIMEOUT_S
            while (found := installed_at(address)) != {1}:
                assert time.monotonic() < until, found
                time.sleep(0.1)
            asked.set()
            asking.join()
            installer.close()
    finally:
        asked.set()


def test_a_job_that_makes_no_sense_is_none_of_the_others_concern(switch: P4RuntimeServer) -> None:
    keeper = keeper_of(switch.address)
    keeper.bring_up()
    problems = keeper.apply_jobs([admission(1), admission(2, epoch=256), admission(3)], [])
    assert {number: str(problem) for number, problem in problems.items()} == {2: "epoch 256: expected 0 to 255"}
    assert installed_at(switch.address) == {1, 3}
    keeper.close()


def test_many_jobs_are_read_for_once_and_written_at_once(switch: P4RuntimeServer) -> None:
    keeper = keeper_of(switch.address)
    keeper.bring_up()
    requests: Counter[str] = Counter()
    client = keeper._client
    assert client is not None
    for name in ("read", "write"):
        plain = getattr(client, name)
        setattr(client, name, lambda *args, name=name, plain=plain: (requests.update([name]), plain(*args))[1])
    assert keeper.apply_jobs([admission(number) for number in range(1, 41)], []) == {}
    assert requests == {"read": 1, "write": 2}
    assert installed_at(switch.address) == set(range(1, 41))
    assert keeper.apply_jobs([admission(50), admission(7, epoch=2)], range(1, 31)) == {}
    assert requests == {"read": 1, "write": 6}
    assert installed_at(switch.address) == {7, *range(31, 41), 50}
    keeper.close()


class Full(LocalWriter):
    """A switch without room for the addresses of one job."""

    def __init__(self, number: int) -> None:
        super().__init__(Pipeline(load(artefacts.program().json_path), compiled=False))
        self.number: int | None = number

    def write(self, updates: Iterable[Update]) -> None:
        updates = list(updates)
        full = [i for i, update in enumerate(updates) if self._is_too_much(update.entity)]
        super().write(update for i, update in enumerate(updates) if i not in full)
        if full:
            refused = [
                RefusedUpdate(index=i, update=str(updates[i]), code="RESOURCE_EXHAUSTED", reason="full") for i in full
            ]
            raise UpdateRefusedError("switch", refused, len(updates))

    def _is_too_much(self, entity: Entity) -> bool:
        return (
            isinstance(entity, TableEntry)
            and entity.table == "addresses"
            and entity.match["job"] == Exact(self.number or 0)
        )


def test_a_job_that_a_switch_refuses_is_none_of_the_others_concern() -> None:
    writer = Full(2)
    tables = JobTables(writer)
    specs = [spec for number in (1, 2, 3) if (spec := ATTACHMENT.spec(admission(number))) is not None]
    problems = tables.install(specs, share_slots=True)
    assert list(problems) == [2]
    assert "switch: 3 of 9 updates refused; the first:" in str(problems[2])
    assert {each.job for each in jobs.read_jobs(writer) if each.spec is not None} == {1, 3}
    assert tables.remove([1, 2]) == {}  # as much as there is of it
    assert {each.job for each in jobs.read_jobs(writer)} == {3}
    writer.number = None
    assert tables.install(specs, share_slots=True) == {}
    assert {each.job for each in jobs.read_jobs(writer) if each.spec is not None} == {1, 2, 3}


def test_a_job_that_could_not_be_removed_is_removed_later(switch: P4RuntimeServer) -> None:
    keeper = keeper_of(switch.address)
    keeper.bring_up()
    assert keeper.apply_jobs([admission(1), admission(2)], []) == {}
    keeper.close()
    problems = keeper.apply_jobs([], [1])
    assert str(problems[1]) == f"switch 0 at {switch.address}: not connected"
    assert "still has its program: restored 0 routes, 1 job" in str(keeper.check())
    assert installed_at(switch.address) == {2}
    keeper.close()


def test_a_job_that_cannot_be_put_back_is_none_of_the_others_concern(switch: P4RuntimeServer) -> None:
    """Somebody else has taken its multicast group meanwhile."""
    keeper = keeper_of(switch.address)
    keeper.bring_up()
    assert keeper.apply_jobs([admission(1), admission(2), admission(3)], []) == {}
    keeper.close()
    with P4RuntimeClient(switch.address) as somebody:
        tables = JobTables(somebody)
        spec = ATTACHMENT.spec(admission(9, slot_base=2048))
        assert spec is not None
        assert tables.remove([2]) == {}
        assert tables.install([replace(spec, group=2)]) == {}

    why = "job 2 is not restored: job 2: group 2 belongs to job 9: choose another one"
    assert (
        keeper.check()
        == f"switch 0 at {switch.address} was out of reach, or another controller's, and still has its program: "
        f"restored 0 routes, 2 jobs; {why}"
    )
    assert installed_at(switch.address) == {1, 3, 9}
    assert keeper.apply_jobs([admission(4)], []).keys() == {2}
    assert installed_at(switch.address) == {1, 3, 4, 9}
    assert keeper.check() == why
    assert keeper.apply_jobs([], [9]).keys() == {2}  # it is not this keeper's
    keeper.close()
    with P4RuntimeClient(switch.address) as somebody:
        assert JobTables(somebody).remove([9]) == {}
    assert "2 jobs" not in str(keeper.check())
    assert keeper.check() is None
    assert installed_at(switch.address) == {1, 2, 3, 4}
    keeper.close()
