"""A switch's entries of jobs, read once and then kept up to date by their only writer.

Any number of jobs are installed or removed in a few writes, without reading again. job_entries makes the entries of each.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from sa_atp.basics.errors import SaAtpError, UserError
from sa_atp.basics.words import plural
from sa_atp.protocol.packets import spec as wire
from sa_atp.switches.control.errors import RefusedUpdate, UpdateRefusedError
from sa_atp.switches.control.job_entries import (
    JOB_TABLES,
    BitmapWords,
    Key,
    entries,
    groups,
    key_of,
    number_in,
    same_effect,
    slots_of,
)
from sa_atp.switches.control.job_reading import InstalledJob, reconstruct
from sa_atp.switches.control.jobspec import JobSpec
from sa_atp.switches.control.writer import Writer
from sa_atp.switches.p4runtime.entities import MulticastGroup, TableEntry, Update, UpdateKind

Problems = dict[int, SaAtpError]
"""Why jobs could not be installed or removed, by their numbers."""
_Order = tuple[int, Update]  # number of the job, and an update for it


class JobTables:
    """The job tables and multicast groups of one switch."""

    def __init__(self, writer: Writer) -> None:
        """Reads the entries. Raises: ControlError: the switch does not answer."""
        self._writer = writer
        self._words = BitmapWords.of(writer.schema)
        # the size of the smallest array of the slots' state
        arrays = [register.size for register in writer.schema.registers if register.alias.endswith("slot_live")]
        self._slots = min(arrays, default=wire.SLOTS)
        self._present: defaultdict[int, dict[Key, TableEntry]] = defaultdict(dict)
        self._groups: dict[int, MulticastGroup] = {}
        for entity in writer.read(*(TableEntry(table=table) for table in JOB_TABLES), MulticastGroup()):
            if isinstance(entity, TableEntry):
                self._present[number_in(entity, "job")][key_of(entity)] = entity
            elif isinstance(entity, MulticastGroup):
                self._groups[entity.group] = entity
        self.written = 0
        """How many updates the switch has carried out."""

    def install(self, specs: Iterable[JobSpec], *, share_slots: bool = False) -> Problems:
        """Installs jobs, or changes those that are there; only differences are written.

        The entry that admits packets of a job is written last, so that its results can leave as soon as packets arrive.
        After a problem, installing again finishes the work.

        Args: share_slots: whether jobs may share slots. That is safe, and slower for both: the parameter server sums
            fragments that find their slot taken.

        Raises: ControlError: the switch does not answer; a part may have been written.
        """
        problems: Problems = {}
        taken = {number: list(_places(present.values())) for number, present in self._present.items()}
        first: list[_Order] = []
        second: list[_Order] = []
        third: list[_Order] = []
        for spec in specs:
            try:
                self._check(spec, taken, share_slots=share_slots)
            except UserError as problem:
                problems[spec.job] = problem
                continue
            wanted_groups = groups(spec)
            taken[spec.job] = [(each.group, spec.slot_base, spec.slot_count) for each in wanted_groups]
            present = self._present.get(spec.job, {})
            wanted = {key_of(entry): entry for entry in entries(spec, self._words)}
            stale = [entry for key, entry in present.items() if key not in wanted]
            upserts = [
                Update(UpdateKind.MODIFY if key in present else UpdateKind.INSERT, entry)
                for key, entry in wanted.items()
                if key not in present or not same_effect(entry, present[key])
            ]
            deletes = [Update(UpdateKind.DELETE, _bare(entry)) for entry in stale]
            first += _of(spec.job, [*self._group_upserts(wanted_groups), *(u for u in upserts if not _admits(u))])
            second += _of(spec.job, (u for u in upserts + deletes if _admits(u)))
            old_groups = _groups_of(present.values()) - {each.group for each in wanted_groups}
            third += _of(spec.job, [*(u for u in deletes if not _admits(u)), *self._group_deletes(old_groups)])
        self._write(problems, first, second, third)
        return problems

    def remove(self, numbers: Iterable[int]) -> Problems:
        """Removes jobs: their packets are stale from then on.

        Raises: ControlError: as for `install`.
        """
        problems: Problems = {}
        first: list[_Order] = []
        second: list[_Order] = []
        for number in numbers:
            present = list(self._present.get(number, {}).values())
            deletes = [Update(UpdateKind.DELETE, _bare(entry)) for entry in present]
            first += _of(number, (u for u in deletes if _admits(u)))
            gone = self._group_deletes(_groups_of(present))
            second += _of(number, [*(u for u in deletes if not _admits(u)), *gone])
        self._write(problems, first, second)
        return problems

    def jobs(self) -> list[InstalledJob]:
        """The jobs of the switch, complete or not, in the order of their numbers."""
        return [
            reconstruct(number, list(present.values()), self._groups, self._words)
            for number, present in sorted(self._present.items())
        ]

    def free_slots(self, count: int) -> int:
        """Finds the first slot from which on a job can have `count` free slots; `count` is a power of two.

        Raises: UserError: the present jobs leave no such range free.
        """
        taken = [slots_of(e) for present in self._present.values() for e in present.values() if e.table == "job"]
        for base in range(0, self._slots - count + 1, count):
            if all(other >= base + count or other + size <= base for other, size in taken):
                return base
        raise UserError(
            f"no range of {count} slots is free: the switch has {self._slots}, and "
            f"{plural(len(taken), 'job has', 'jobs have')} some"
        )

    def _check(self, spec: JobSpec, taken: dict[int, list[tuple[int, int, int]]], *, share_slots: bool) -> None:
        """Raises: UserError: the switch cannot take the job. Args: taken: groups and slots of jobs, by their numbers."""
        if spec.fan_in > self._words.all:
            raise UserError(
                f"job {spec.job}: fan_in 0x{spec.fan_in:x}: the switch's program has {self._words.contributions} "
                "contribution bits"
            )
        last = spec.slot_base + spec.slot_count - 1
        if last >= self._slots:
            raise UserError(f"job {spec.job}: slots {spec.slot_base} to {last}: the switch has {self._slots}")
        numbers = {each.group for each in groups(spec)}
        for number, places in taken.items():
            for other, base, count in places if number != spec.job else ():
                if other in numbers:
                    raise UserError(f"job {spec.job}: group {other} belongs to job {number}: choose another one")
                if not share_slots and base <= last and spec.slot_base < base + count:
                    raise UserError(
                        f"job {spec.job}: slots {spec.slot_base} to {last} overlap with "
                        f"job {number}, which has {base} to {base + count - 1}"
                    )

    def _group_upserts(self, wanted: Iterable[MulticastGroup]) -> list[Update]:
        return [
            Update(UpdateKind.MODIFY if each.group in self._groups else UpdateKind.INSERT, each)
            for each in wanted
            if each != self._groups.get(each.group)
        ]

    def _group_deletes(self, numbers: Iterable[int]) -> list[Update]:
        return [
            Update(UpdateKind.DELETE, MulticastGroup(group=number))
            for number in sorted(numbers)
            if number in self._groups
        ]

    def _write(self, problems: Problems, *batches: Sequence[_Order]) -> None:
        """Makes a write for each batch; the server chooses the order within one. A problem of a job ends its updates."""
        for batch in batches:
            orders = [order for order in batch if order[0] not in problems]
            if not orders:
                continue
            try:
                self._writer.write([update for _, update in orders])
                refused: dict[int, RefusedUpdate] = {}
            except UpdateRefusedError as error:
                refused = {each.index: each for each in error.refused}
                for number in {orders[index][0] for index in refused}:
                    mine = [index for index, (other, _) in enumerate(orders) if other == number]
                    theirs = [refused[index] for index in mine if index in refused]
                    problems[number] = UpdateRefusedError(error.where, theirs, len(mine))
            for index, (number, update) in enumerate(orders):
                if index not in refused:
                    self._took(number, update)

    def _took(self, number: int, update: Update) -> None:
        """Notes that the switch has carried out an update of a job."""
        self.written += 1
        entity, is_gone = update.entity, update.kind is UpdateKind.DELETE
        if isinstance(entity, TableEntry):
            present = self._present[number]
            present.pop(key_of(entity), None)
            if not is_gone:
                present[key_of(entity)] = entity
            if not present:
                del self._present[number]
        elif isinstance(entity, MulticastGroup):
            self._groups.pop(entity.group, None)
            if not is_gone:
                self._groups[entity.group] = entity


def _of(number: int, updates: Iterable[Update]) -> list[_Order]:
    return [(number, update) for update in updates]


def _admits(update: Update) -> bool:
    """Whether an update is about an entry that admits packets of a job."""
    return isinstance(update.entity, TableEntry) and update.entity.table == "job"


def _joins(present: Iterable[TableEntry]) -> Iterator[TableEntry]:
    return (entry for entry in present if entry.table == "job" and entry.action == "join")


def _places(present: Iterable[TableEntry]) -> Iterator[tuple[int, int, int]]:
    """Group, first slot and number of slots of each entry that admits packets."""
    return ((entry.params["group"], *slots_of(entry)) for entry in _joins(present))


def _groups_of(present: Iterable[TableEntry]) -> set[int]:
    return {entry.params["group"] for entry in present if entry.table == "job" and "group" in entry.params}


def _bare(entry: TableEntry) -> TableEntry:
    """An entry with its key alone, as a delete has it."""
    return TableEntry(table=entry.table, match=entry.match, priority=entry.priority)
