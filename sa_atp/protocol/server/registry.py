"""The parameter server's jobs: their names, numbers and shares of the switches' slots. (protocol section 7.1)"""

from collections.abc import Callable

from sa_atp.protocol.help.plan import PLAIN, Kernels
from sa_atp.protocol.log.event import Log, of_nobody
from sa_atp.protocol.packets.control import Terms
from sa_atp.protocol.packets.message_fields import MOST_SLOTS
from sa_atp.protocol.server.job import Job, State

MAX_JOBS = 255  # 0 is no job's number
OVER = (State.ENDED, State.FAILED)


class Registry:
    def __init__(
        self,
        *,
        lanes: int,
        contribution_bits: int,
        slots: int,
        slots_per_job: int,
        random_bits: Callable[[int], int],
        log_of: Callable[[str], Log] = of_nobody,
        plan_kernels: Kernels = PLAIN,
    ) -> None:
        """Args: see ServerSettings and ParameterServer."""
        self.jobs: dict[int, Job] = {}
        self._lanes = lanes
        self._contribution_bits = contribution_bits
        self._slots = min(slots, MOST_SLOTS)
        self.quota = min(slots_per_job, slots)
        """Slots of a job."""
        self._random_bits = random_bits
        self._log_of = log_of
        self._plan_kernels = plan_kernels

    def named(self, name: str) -> Job | None:
        return next((job for job in self.jobs.values() if job.name == name), None)

    def add(self, name: str, terms: Terms) -> Job | None:
        """Adds a job, if need be with the number of one that is over. Returns: None: all numbers are in use."""
        number = next((n for n in range(1, MAX_JOBS + 1) if n not in self.jobs), None)
        epoch = self._random_bits(8)
        if number is None:
            number = next((n for n, job in self.jobs.items() if job.state in OVER), None)
            if number is None:
                return None
            # another epoch than that of packets and events of the job that had the number
            epoch = (self.jobs.pop(number).epoch + 1) & 0xFF
        job = Job(
            name=name,
            number=number,
            epoch=epoch,
            terms=terms,
            lanes=self._lanes,
            slot_base=self._free_quota(),
            slot_count=self.quota,
            first_seq=self._random_bits(32),
            contribution_bits=self._contribution_bits,
            log=self._log_of(name),
            plan_kernels=self._plan_kernels,
        )
        self.jobs[number] = job
        return job

    def _free_quota(self) -> int:
        """First slot of the quota that is used by the fewest jobs."""
        live = [job.slot_base for job in self.jobs.values() if job.state not in OVER]
        return min(range(0, self._slots, self.quota), key=lambda base: (live.count(base), base))
