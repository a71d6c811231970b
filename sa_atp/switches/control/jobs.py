"""Installs, removes and reads aggregation jobs on a switch, and reads their counters.

job_entries makes the entries of a job, job_tables installs many jobs at once, and job_reading recognises a job in entries.
"""

from sa_atp.switches.control.events import COUNTER, Event, cell
from sa_atp.switches.control.job_reading import InstalledJob
from sa_atp.switches.control.job_tables import JobTables
from sa_atp.switches.control.jobspec import JobSpec
from sa_atp.switches.control.writer import Writer
from sa_atp.switches.p4runtime.entities import CounterData, CounterEntry


def install(writer: Writer, spec: JobSpec, *, share_slots: bool = False) -> int:
    """Installs a job, see `JobTables.install`. Returns: how many updates were written.

    Raises:
        UserError: the program's bitmaps are narrower than the fan-in; another job has the multicast group, or (unless slots
            may be shared) a slot of the job.
        UpdateRefusedError: the switch refused something; other `ControlError`s: it does not answer.
    """
    tables = JobTables(writer)
    for problem in tables.install([spec], share_slots=share_slots).values():
        raise problem
    return tables.written


def remove(writer: Writer, job: int) -> int:
    """Removes a job, see `JobTables.remove`. Returns: how many updates were written. Raises: ControlError."""
    tables = JobTables(writer)
    for problem in tables.remove([job]).values():
        raise problem
    return tables.written


def free_slots(writer: Writer, count: int) -> int:
    """A place for a job, see `JobTables.free_slots`."""
    return JobTables(writer).free_slots(count)


# --- reading ----------------------------------------------------------------------------------------------------------


def read_jobs(writer: Writer) -> list[InstalledJob]:
    """The jobs of a switch, see `JobTables.jobs`."""
    return JobTables(writer).jobs()


def counters(writer: Writer, job: int) -> dict[Event, CounterData]:
    """The counters of a job since the pipeline was pushed."""
    indices = {cell(job, event): event for event in Event}
    found = writer.read(*(CounterEntry(counter=COUNTER, index=index) for index in indices))
    return {
        indices[entry.index]: entry.counts or CounterData()
        for entry in found
        if isinstance(entry, CounterEntry) and entry.index in indices
    }
