"""Installs, removes and reads aggregation jobs on a switch, and reads their counters.

job_entries makes the entries of a job, job_tables installs many jobs at once, and job_reading recognises a job in entries.
"""

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import plural
from sa_atp.switches.control.events import COUNTER, Event, cell
from sa_atp.switches.control.job_entries import JOB_TABLES, BitmapWords, number_in, slots_of
from sa_atp.switches.control.job_reading import InstalledJob, reconstruct
from sa_atp.switches.control.job_tables import JobTables, slots_of_switch
from sa_atp.switches.control.jobspec import JobSpec
from sa_atp.switches.control.writer import Writer
from sa_atp.switches.p4runtime.entities import CounterData, CounterEntry, MulticastGroup, TableEntry


def install(writer: Writer, spec: JobSpec, *, share_slots: bool = False) -> int:
    """Installs a job, see `JobTables.install`. Returns: how many updates were written.

    Raises:
        UserError: the program's bitmaps are narrower than the fan-in; another job has the multicast group, or (unless slots
            may be shared) a slot of the job.
        RefusedError: the switch refused something; other `ControlError`s: it does not answer.
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
    """The first base at which a job may have `count` slots, a power of two.

    Raises: UserError: the present jobs leave no such range free.
    """
    taken = [slots_of(e) for e in _read_tables(writer) if e.table == "job"]
    slots = slots_of_switch(writer)
    for base in range(0, slots - count + 1, count):
        if all(other >= base + count or other + size <= base for other, size in taken):
            return base
    raise UserError(
        f"no range of {count} slots is free: the switch has {slots}, and {plural(len(taken), 'job has', 'jobs have')} some"
    )


# --- reading ----------------------------------------------------------------------------------------------------------


def read_jobs(writer: Writer) -> list[InstalledJob]:
    """The jobs of a switch, complete or not, in the order of their numbers."""
    tables = _read_tables(writer)
    words = BitmapWords.of(writer.schema)
    groups = {g.group: g for g in writer.read(MulticastGroup()) if isinstance(g, MulticastGroup)}
    return [
        reconstruct(job, [e for e in tables if number_in(e, "job") == job], groups, words)
        for job in sorted({number_in(e, "job") for e in tables})
    ]


def counters(writer: Writer, job: int) -> dict[Event, CounterData]:
    """The counters of a job since the pipeline was pushed."""
    indices = {cell(job, event): event for event in Event}
    found = writer.read(*(CounterEntry(counter=COUNTER, index=index) for index in indices))
    return {
        indices[entry.index]: entry.counts or CounterData()
        for entry in found
        if isinstance(entry, CounterEntry) and entry.index in indices
    }


def _read_tables(writer: Writer) -> list[TableEntry]:
    found = writer.read(*(TableEntry(table=table) for table in JOB_TABLES))
    return [entry for entry in found if isinstance(entry, TableEntry)]
