"""Aggregation jobs on a switch: put there, taken away, read back, and what it has counted for each.

What a job is made of is in job_entries; how it is recognised, in job_reading.
"""

from collections.abc import Iterable, Sequence

from sa_atp import spec as wire
from sa_atp.control.events import COUNTER, Event, cell
from sa_atp.control.job_entries import (
    JOB_TABLES,
    BitmapWords,
    Key,
    entries,
    group,
    key_of,
    number_in,
    same_effect,
    slots_of,
)
from sa_atp.control.job_reading import InstalledJob, reconstruct
from sa_atp.control.jobspec import JobSpec
from sa_atp.control.writer import Writer
from sa_atp.errors import UserError
from sa_atp.p4runtime.entities import (
    CounterEntry,
    Counts,
    MulticastGroup,
    TableEntry,
    Update,
    UpdateKind,
)
from sa_atp.words import plural


def install(writer: Writer, spec: JobSpec, *, share_slots: bool = False) -> int:
    """Makes a switch serve a job, whatever it held for that job before; only differences are written.

    The entry that admits packets comes last, so that none is taken before there is a way for its result. After a
    failure, installing again finishes the work.

    Args: share_slots: let the job have slots of another one. That is safe, and slower for both: fragments that find
        their slot taken are summed by the parameter server.

    Returns: how many updates were written.

    Raises:
        UserError: the program's bitmaps are narrower than the fan-in; another job has the multicast group, or (unless they
            may be shared) a slot that the job wants.
        RefusedError: the switch refused something; other `ControlError`s: it could not be asked.
    """
    words = BitmapWords.of(writer.schema)
    if spec.fan_in > words.all:
        raise UserError(
            f"job {spec.job}: fan_in 0x{spec.fan_in:x}: the switch's program has {words.contributions} contribution bits"
        )
    tables = _read_tables(writer)
    _check_room(tables, spec, slots_of_switch(writer), share_slots)
    present = _of_job(tables, spec.job)
    wanted = {key_of(e): e for e in entries(spec, words)}
    upserts = [
        Update(UpdateKind.MODIFY if key in present else UpdateKind.INSERT, entry)
        for key, entry in wanted.items()
        if key not in present or not same_effect(entry, present[key])
    ]
    stale = [Update(UpdateKind.DELETE, _bare(entry)) for key, entry in present.items() if key not in wanted]
    old_groups = {e.params["group"] for e in present.values() if e.table == "job" and "group" in e.params}
    return _write(
        writer,
        _group_updates(writer, group(spec)) + [u for u in upserts if _table(u) != "job"],
        [u for u in upserts + stale if _table(u) == "job"],
        [u for u in stale if _table(u) != "job"] + _group_deletes(writer, old_groups - {spec.group}),
    )


def remove(writer: Writer, job: int) -> int:
    """Makes a switch forget a job: packets of it are stale from then on. Returns: how many updates were written."""
    present = _of_job(_read_tables(writer), job).values()
    deletes = [Update(UpdateKind.DELETE, _bare(entry)) for entry in present]
    groups = {e.params["group"] for e in present if e.table == "job" and "group" in e.params}
    return _write(
        writer,
        [u for u in deletes if _table(u) == "job"],
        [u for u in deletes if _table(u) != "job"] + _group_deletes(writer, groups),
    )


def _write(writer: Writer, *batches: Sequence[Update]) -> int:
    """One write a batch: within one, the order is the server's to choose."""
    for batch in batches:
        if batch:
            writer.write(batch)
    return sum(len(batch) for batch in batches)


def _group_updates(writer: Writer, wanted: MulticastGroup) -> list[Update]:
    present = writer.read(MulticastGroup(group=wanted.group))
    if wanted in present:
        return []
    return [Update(UpdateKind.MODIFY if present else UpdateKind.INSERT, wanted)]


def _group_deletes(writer: Writer, groups: Iterable[int]) -> list[Update]:
    return [
        Update(UpdateKind.DELETE, MulticastGroup(group=number))
        for number in sorted(groups)
        if writer.read(MulticastGroup(group=number))
    ]


def slots_of_switch(writer: Writer) -> int:
    """How many slots its program has: the cells of the smallest array of the slots' state."""
    arrays = [register.size for register in writer.schema.registers if register.alias.endswith("slot_live")]
    return min(arrays, default=wire.SLOTS)


def _check_room(tables: Sequence[TableEntry], spec: JobSpec, slots: int, share_slots: bool) -> None:
    if spec.slot_base + spec.slot_count > slots:
        raise UserError(
            f"job {spec.job}: slots {spec.slot_base} to {spec.slot_base + spec.slot_count - 1}: the switch has {slots}"
        )
    for entry in tables:
        if entry.table != "job" or number_in(entry, "job") == spec.job or entry.action != "join":
            continue
        other = f"job {number_in(entry, 'job')}"
        if entry.params["group"] == spec.group:
            raise UserError(f"job {spec.job}: group {spec.group} belongs to {other}: choose another one")
        base, count = slots_of(entry)
        if not share_slots and base < spec.slot_base + spec.slot_count and spec.slot_base < base + count:
            raise UserError(
                f"job {spec.job}: slots {spec.slot_base} to {spec.slot_base + spec.slot_count - 1} overlap with "
                f"{other}, which has {base} to {base + count - 1}"
            )


def free_slots(writer: Writer, count: int) -> int:
    """The first base at which a job may have `count` slots, a power of two.

    Raises: UserError: there is no room for so many beside the jobs that are there.
    """
    taken = [slots_of(e) for e in _read_tables(writer) if e.table == "job"]
    slots = slots_of_switch(writer)
    for base in range(0, slots - count + 1, count):
        if all(other >= base + count or other + size <= base for other, size in taken):
            return base
    raise UserError(
        f"there are no {count} slots in a row left of {slots}: {plural(len(taken), 'job has', 'jobs have')} some"
    )


# --- what is there ----------------------------------------------------------------------------------------------------


def read_jobs(writer: Writer) -> list[InstalledJob]:
    """The jobs that a switch holds, whole or not, by number."""
    tables = _read_tables(writer)
    words = BitmapWords.of(writer.schema)
    groups = {g.group: g for g in writer.read(MulticastGroup()) if isinstance(g, MulticastGroup)}
    return [
        reconstruct(job, [e for e in tables if number_in(e, "job") == job], groups, words)
        for job in sorted({number_in(e, "job") for e in tables})
    ]


def counters(writer: Writer, job: int) -> dict[Event, Counts]:
    """What the switch has counted for a job since its pipeline was pushed, or since `reset_counters`."""
    indices = {cell(job, event): event for event in Event}
    found = writer.read(*(CounterEntry(counter=COUNTER, index=index) for index in indices))
    return {
        indices[entry.index]: entry.counts or Counts()
        for entry in found
        if isinstance(entry, CounterEntry) and entry.index in indices
    }


def reset_counters(writer: Writer, job: int) -> None:
    writer.write(
        Update(UpdateKind.MODIFY, CounterEntry(counter=COUNTER, index=cell(job, event), counts=Counts(0, 0)))
        for event in Event
    )


# --- helpers ----------------------------------------------------------------------------------------------------------


def _read_tables(writer: Writer) -> list[TableEntry]:
    found = writer.read(*(TableEntry(table=table) for table in JOB_TABLES))
    return [entry for entry in found if isinstance(entry, TableEntry)]


def _of_job(tables: Iterable[TableEntry], job: int) -> dict[Key, TableEntry]:
    return {key_of(entry): entry for entry in tables if number_in(entry, "job") == job}


def _bare(entry: TableEntry) -> TableEntry:
    """What names an entry to be deleted."""
    return TableEntry(table=entry.table, match=entry.match, priority=entry.priority)


def _table(update: Update) -> str:
    return update.entity.table if isinstance(update.entity, TableEntry) else ""
