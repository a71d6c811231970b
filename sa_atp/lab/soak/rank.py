"""The program of one rank in a world: it joins, makes its sums and leaves; after an error it joins again."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from sa_atp.basics.arrays import Exponents, Integers, Octets, Values
from sa_atp.lab.simulator.nodes import SimHost
from sa_atp.lab.simulator.sim_worker import SimWorker
from sa_atp.lab.simulator.virtual_time import VirtualProcess
from sa_atp.lab.simulator.world import World
from sa_atp.lab.soak import invariants, values
from sa_atp.lab.soak.invariants import Broken
from sa_atp.lab.soak.scene import JobScene, Scene
from sa_atp.net.loop.compiled import worker_kernels
from sa_atp.net.session import Sum
from sa_atp.protocol.job.errors import NonFiniteError, TransportError
from sa_atp.protocol.job.membership import JoinRequest
from sa_atp.protocol.numbers.fragments import CHUNK_VALUES
from sa_atp.protocol.packets.message_fields import HelpGrade, Results
from sa_atp.steps.effects import Compute
from sa_atp.steps.step import Stepper

MOST_TRIES = 3  # times that a rank joins, plus one for each fault; each may take 30 s
PATIENCE = 0.02  # of a leader before it offers help, as a share of the time of its own shard
AGAIN_US = 300_000  # longest pause before a rank joins again


class RankWorld(ABC):
    """The part of a world (`world.SoakWorld`) that ranks use: its network, and what all ranks have reached so far."""

    def __init__(self, scene: Scene, network: World) -> None:
        self.scene = scene
        self.network = network
        self.left: list[SimWorker] = []
        """Connections that left the job with all their sums."""
        self.ranks: list[Rank] = []
        self.sums = 0
        self.problem: Exception | None = None
        """The first exception of a future's callback."""
        self.progress_us = self.longest_us = 0
        self.are_over = False

    def schedule(self, delay_us: int, action: Callable[[], None]) -> None:
        self.network.clock.at(self.network.clock.now_us + delay_us, action)

    def run_guarded(self, action: Callable[[], None]) -> None:
        """Runs a callback of a future and keeps its exception, which the future would only log."""
        try:
            action()
        except Exception as problem:
            self.problem = self.problem or problem

    def note_progress(self) -> None:
        now_us = self.network.clock.now_us
        self.longest_us = max(self.longest_us, now_us - self.progress_us)
        self.progress_us = max(self.progress_us, now_us)
        self.are_over = all(rank.is_over for rank in self.ranks)

    @abstractmethod
    def note_joined(self) -> None:
        """Begins the faults that wait for the first rank to join."""

    def note_sum(self, worker: SimWorker) -> None:
        """Counts a correct sum, and checks the invariants. Raises: Broken."""
        self.sums += 1
        self.note_progress()
        invariants.check_worker(worker)
        if self.sums % len(self.ranks) == 0:
            self.check_all()

    def check_all(self) -> None:
        """Checks all connections, switches and the parameter server. Raises: Broken."""
        for rank in self.ranks:
            if rank.worker is not None and rank.has_joined:
                invariants.check_worker(rank.worker)
        for rack in self.network.racks:
            invariants.check_switch(rack)
        invariants.check_server(self.network)


class JobState:
    """A job of a world: what its ranks contribute, and the sums that they have got so far."""

    def __init__(self, seed: int, number: int, scene: JobScene) -> None:
        self.number = number
        self.scene = scene
        self.ranks: list[Rank] = []
        self.away: set[int] = set()
        """Ranks that died or were restarted."""
        self._seed = seed
        self._parts: dict[int, list[Values]] = {}
        self._first: dict[tuple[int, int, int, int], tuple[Integers, Exponents, Values]] = {}

    def parts(self, step: int) -> list[Values]:
        """float32[values] of each contribution to the sum of a step."""
        if step not in self._parts:
            self._parts[step] = values.draw_contributions(self._seed, self.number, self.scene, step)
        return self._parts[step]

    def gathered_part(self, step: int, rank: int) -> Octets:
        """uint8[bytes]: a rank's part of an all-gather."""
        return self.parts(step)[rank * self.scene.micro_batches].view(np.uint8)

    def check(self, worker: SimWorker, step: int, sum_: Sum) -> None:
        """Compares the first rank's sum with the reference, and the sums of other ranks with the first. Raises: Broken."""
        assert sum_.finished is not None
        member = worker.membership
        where = f"job {self.number}, sum {step}, rank {member.rank}"
        if self.scene.is_gather(step):
            for rank, part in enumerate(sum_.out):
                if not np.array_equal(part, self.gathered_part(step, rank)):
                    raise Broken("sum", f"{where}: the part of rank {rank} has other bytes")
            return
        integers, exponents = sum_.finished.integers()
        if self.scene.scattered:
            part = slice(member.rank * self.scene.lengths[step], (member.rank + 1) * self.scene.lengths[step])
            contributions = [each[part] for each in self.parts(step)]
            self._compare(where, integers, sum_.out, values.reference(contributions, exponents))
            return
        course = (member.job, member.epoch, member.first_seq, step)  # sums differ from epoch to epoch
        if course in self._first:
            known = self._first[course]
            for name, mine, others in zip(
                ("integers", "exponents", "values"), (integers, exponents, sum_.out), known, strict=True
            ):
                if not np.array_equal(mine.view(np.uint8), others.view(np.uint8)):
                    raise Broken("sum", f"{where}: its {name} differ from another rank's")
            return
        of_values = exponents[np.arange(integers.size) // CHUNK_VALUES]
        self._compare(where, integers, sum_.out, values.reference(self.parts(step), of_values))
        self._first[course] = integers.copy(), exponents.copy(), sum_.out.copy()

    def _compare(self, where: str, integers: Integers, out: Values, expected: values.Reference) -> None:
        """Raises: Broken."""
        wrong = np.flatnonzero(integers != expected.integers)
        if len(wrong):
            at = int(wrong[0])
            raise Broken(
                "sum", f"{where}: {len(wrong)} of {len(integers)} integers are wrong, the first is value {at}: "
                f"{integers[at]}, expected {expected.integers[at]}"
            )  # fmt: skip
        if not (np.abs(out - expected.exact) <= expected.bound).all():
            raise Broken("sum", f"{where}: differs from the exact sum by more than rounding can explain")


class _Workload:
    """The workload of a rank in a job with help, as `steps.step` needs it."""

    micro_batch_size = 1

    def __init__(self, job: JobState) -> None:
        self.values = job.scene.lengths[0]
        self._job = job

    def gradient(self, step: int, shard: int, micro_batch: int) -> tuple[Values, float]:
        return self._job.parts(step)[shard * self._job.scene.micro_batches + micro_batch], 0.0

    def apply(self, gradient: Values) -> None:
        pass


class Rank:
    def __init__(self, world: RankWorld, job: JobState, rank: int, host: SimHost) -> None:
        self.world = world
        self.job = job
        self.rank = rank
        self.host = host
        self.worker: SimWorker | None = None
        self.has_joined = False
        self.done = 0
        """Sums that it has got over this connection."""
        self.is_over = False
        self.is_dead = False
        self.errors: list[TransportError] = []
        self._rng = random.Random(world.scene.seed * 4099 + job.number * 67 + rank)
        self._begun = 0
        self._busy_until_us = 0

    @property
    def has_all(self) -> bool:
        return self.done == len(self.job.scene.lengths)

    # --- life -----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Opens a new connection on the rank's host."""
        scene, world = self.job.scene, self.world.network
        self._begun = self.done = 0
        self._busy_until_us = 0
        self.has_joined = False
        self.worker = SimWorker(
            self.host,
            world.clock,
            JoinRequest(
                job=f"job {self.job.number}",
                rank=self.rank,
                world_size=scene.ranks,
                micro_batches=scene.micro_batches,
                help_grade=scene.help,
                results=Results.SCATTERED if scene.scattered else Results.TO_ALL,
            ),
            world.server_address,
            world.random,
            joined=self._if_current(self._joined),
            failed=self._if_current(self._failed),
            kernels=worker_kernels() if self.world.scene.compiled else None,
        )

    def die(self, restart_us: int | None) -> None:
        """Ends the rank's process. Args: restart_us: time until it starts again; None: it does not."""
        if self.is_over:
            return
        self.job.away.add(self.rank)
        self._disconnect()
        if restart_us is None:
            self.is_dead = self.is_over = True
            self.world.note_progress()
        else:
            self.world.schedule(restart_us, self._start_unless_over)

    def _start_unless_over(self) -> None:
        if not self.is_over and self.worker is None:
            self.start()

    def _disconnect(self) -> None:
        self.worker = None
        self.host.connection = None
        self.host.after = lambda: None

    def _if_current(self, action: Callable[[SimWorker], None]) -> Callable[[SimWorker], None]:
        """The callback without effect for connections that have been replaced."""

        def check_first(worker: SimWorker) -> None:
            if worker is self.worker:
                action(worker)

        return check_first

    def _failed(self, worker: SimWorker) -> None:
        error = worker.error
        assert error is not None
        self.errors.append(error)
        over = {each.rank for each in self.job.ranks if each.is_over}
        left = {each.rank for each in self.job.ranks if each.is_over and each.has_all}
        invariants.check_error(self.world.scene, self.job.number, error, self.job.away | over, left)
        self._disconnect()
        most_tries = MOST_TRIES + len(self.world.scene.faults)
        if self.has_all or isinstance(error, NonFiniteError) or len(self.errors) >= most_tries:
            self._end()
        else:
            self.world.schedule(self._rng.randrange(1, AGAIN_US), self._start_unless_over)
        self.world.note_progress()

    def _end(self) -> None:
        self.is_over = True
        self.world.note_progress()

    # --- sums -----------------------------------------------------------------------------------------------------------

    def _joined(self, worker: SimWorker) -> None:
        self.has_joined = True
        self.world.note_joined()
        self._go_on(worker)

    def _go_on(self, worker: SimWorker) -> None:
        """Begins further sums, or leaves when the rank has all of them."""
        scene = self.job.scene
        if self.has_all:
            self._leave(worker)
        elif scene.help is not HelpGrade.NONE:
            if self._begun == self.done:
                self._step(worker)
        else:
            while self._begun < min(len(scene.lengths), self.done + scene.ahead):
                self._begin(worker)

    def _piece_us(self) -> int:
        """Compute time of a micro-batch."""
        scene = self.job.scene
        return scene.compute_us * (scene.slowdown if self.rank in scene.slow else 1)

    def _begin(self, worker: SimWorker) -> None:
        """Begins a sum without help."""
        scene, clock = self.job.scene, self.world.network.clock
        step, length = self._begun, self.job.scene.values(self._begun)
        self._begun += 1
        if scene.is_gather(step):
            sum_ = worker.begin_gather(self.job.gathered_part(step, self.rank).size)
        else:
            sum_ = worker.begin(length, f"tensor of {length}" if scene.keyed else None)
        sum_.future.add_done_callback(lambda _: self.world.run_guarded(partial(self._take, worker, step, sum_)))
        self._busy_until_us = max(self._busy_until_us, clock.now_us) + self._piece_us() * scene.micro_batches
        clock.at(self._busy_until_us, partial(self._contribute, worker, step, sum_))

    def _contribute(self, worker: SimWorker, step: int, sum_: Sum) -> None:
        if worker is not self.worker:
            return
        if self.job.scene.is_gather(step):
            worker.contribute_part(sum_, self.job.gathered_part(step, self.rank))
        else:
            own = slice(self.rank * self.job.scene.micro_batches, (self.rank + 1) * self.job.scene.micro_batches)
            worker.contribute(sum_, self.job.parts(step)[own], worker.membership.bits_of(self.rank))

    def _step(self, worker: SimWorker) -> None:
        """Begins a sum with help."""
        step = self._begun
        self._begun += 1
        if step == 0:
            self._stepper = Stepper(worker, _Workload(self.job), helps=True, patience=PATIENCE)
        workload = self._stepper.workload

        def finished(outcome: Any) -> None:
            if not isinstance(outcome, TransportError):
                self._take(worker, step, outcome[1])

        def gradient(work: Compute) -> tuple[Values, float]:
            return workload.gradient(work.step, work.shard, work.micro_batch)

        VirtualProcess(
            self.world.network.clock,
            self._stepper.run(step),
            duration_us=lambda _: self._piece_us(),
            gradient=gradient,
            finished=finished,
        )

    def _take(self, worker: SimWorker, step: int, sum_: Sum) -> None:
        """Takes the result of a sum and checks it. Raises: Broken."""
        if sum_.finished is None or worker is not self.worker:
            return
        if self.job.scene.not_finite is not None and self.job.scene.not_finite[0] == step:
            raise Broken("sum", f"job {self.job.number}, sum {step}: it has a result, though a contribution has a NaN")
        self.job.check(worker, step, sum_)
        self.done += 1
        self.world.note_sum(worker)
        # not from within the callback, which runs in the middle of what completes the sum
        self.world.schedule(0, lambda: self._if_current(self._go_on)(worker))

    def _leave(self, worker: SimWorker) -> None:
        def left(_: object) -> None:
            self.world.schedule(0, lambda: self._if_current(self._has_left)(worker))

        worker.leave().add_done_callback(left)

    def _has_left(self, worker: SimWorker) -> None:
        if worker.error is None:
            self.world.left.append(worker)
            self._disconnect()
            self._end()
