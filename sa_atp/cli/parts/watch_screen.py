"""A look at running jobs as tables for a terminal, or as plain lines. (docs/watching.md)"""

from typing import Any

from sa_atp.basics.words import plural
from sa_atp.net.watching import summary
from sa_atp.net.watching.looking import Cluster, View
from sa_atp.net.watching.states import ConnectionState, JobState, RankState, SwitchState

UNKNOWN = "-"
COLUMNS = ("rank", "does", "computing", "sending", "waiting", "late in", "helped", "window", "resent", "lost")
OVER = ("failed", "ended")
MOST_OVER = 3  # jobs that are over, in a screen


def screen(view: View, before: View | None) -> Any:
    """Everything as one renderable of rich. Args: before: an earlier look, for rates."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = []
    for cluster in view.clusters:
        parts.append(Text(headline(cluster), style="bold"))
        for job in shown(cluster):
            parts += [Text(f"  {line}") for line in lines_of_job(cluster, job, before)]
            if job.ranks and job.state not in OVER:
                parts.append(_table(cluster, job, before))
        if cluster.server is None:
            parts += [Text(f"  {line}") for line in lines_of_connections(cluster, before)]
        parts += [Text(f"  {line_of_switch(switch, before)}") for switch in cluster.switches]
    parts += [Text(line_of_switch(switch, before)) for switch in view.switches]
    return Group(*parts)


def lines(view: View, before: View | None) -> list[str]:
    """Everything as lines of text, one for each job and switch."""
    found = []
    for cluster in view.clusters:
        for job in shown(cluster):
            found.append("; ".join(lines_of_job(cluster, job, before)))
        if cluster.server is None:
            found += lines_of_connections(cluster, before)
        elif not cluster.server.jobs:
            found.append(headline(cluster))
        found += [line_of_switch(switch, before) for switch in cluster.switches]
    return found + [line_of_switch(switch, before) for switch in view.switches]


def shown(cluster: Cluster) -> list[JobState]:
    """The jobs of a parameter server that run or wait, and the newest of those that are over."""
    jobs = cluster.server.jobs if cluster.server is not None else []
    over = [job for job in jobs if job.state in OVER]
    return [job for job in jobs if job.state not in OVER] + over[-MOST_OVER:]


def headline(cluster: Cluster) -> str:
    server = cluster.server
    if server is None:
        return f"parameter server {cluster.address}: on another machine, or another user's; its ranks here:"
    said = plural(len(server.jobs), "job")
    refused = server.malformed + server.foreign
    return f"parameter server {cluster.address}: {said}" + (f", {plural(refused, 'packet')} refused" if refused else "")


def lines_of_job(cluster: Cluster, job: JobState, before: View | None) -> list[str]:
    rate = summary.steps_a_second(cluster, job, before)
    speed = f", {rate:.3g} steps/s" if rate is not None and job.state == summary.RUNNING else ""
    found = [
        f"job {job.name}: {job.state}, {plural(job.world_size, 'rank')}{speed}; {summary.waiting_for(cluster, job)}"
    ]
    return [*found, job.slow] if job.slow else found


def lines_of_connections(cluster: Cluster, before: View | None) -> list[str]:
    return [
        f"rank {each.rank} of {each.world_size}, job {each.job}: "
        f"{summary.pace(each, summary.connection_in(before, each)).steps_a_second:.3g} steps/s, "
        f"{'waits' if each.is_waiting else 'computes'}"
        for each in cluster.connections
    ]


def line_of_switch(switch: SwitchState, before: View | None) -> str:
    collisions = sum(of_job.get("collision", 0) for of_job in switch.events.values())
    slots = f"{switch.slots_open} of {plural(switch.slots, 'slot')} in use, " if switch.slots else ""
    dropped = sum(drop.packets for drop in switch.drops)
    return (
        f"switch {switch.name}: {summary.packets_a_second(switch, before):,.0f} packets/s, {switch.packets_in:,} in, "
        f"{switch.packets_out:,} out, {slots}{plural(collisions, 'collision')}"
        + (f", {dropped:,} dropped" if dropped else "")
    )


def _table(cluster: Cluster, job: JobState, before: View | None) -> Any:
    from rich.table import Table

    table = Table(box=None, collapse_padding=True, padding=(0, 1), pad_edge=True)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "does" else "right", no_wrap=True, min_width=len(name))
    for rank in job.ranks:
        connection = cluster.connection(job, rank.rank)
        is_waited_for = rank.rank in job.waited_for
        table.add_row(*_row(job, rank, connection, before), style="bold" if is_waited_for else "")
    return table


def _row(job: JobState, rank: RankState, connection: ConnectionState | None, before: View | None) -> list[str]:
    late = str(rank.late) if job.sums else UNKNOWN
    does = summary.activity(job, rank, connection)
    if connection is None:
        return [str(rank.rank), does, *[UNKNOWN] * 3, late, *[UNKNOWN] * 4]
    pace = summary.pace(connection, summary.connection_in(before, connection))
    counters = connection.counters
    lost = counters["lost_by_order"] + counters["lost_by_probe"]
    return [
        str(rank.rank),
        does,
        *(f"{share:.0%}" for share in (pace.computing, pace.sending, pace.waiting)),
        late,
        str(connection.helped),
        f"{min(connection.window, connection.slot_window):.0f}",
        str(counters["retransmitted"]),
        str(lost),
    ]
