"""SwitchML's protocol beside this project's own, on the same kind of switch: one table of `sa-atp reproduce`.

Every packet is simulated. SwitchML's window is fixed, so it is tuned as learning rates are, with a seed of its own: the
table is to show the protocol, and not a window that does not fit the links.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from statistics import median
from typing import Any

from rich.table import Table

from sa_atp.basics import terminal
from sa_atp.basics.words import join
from sa_atp.lab.bench import loss
from sa_atp.lab.bench.loss import OURS, LossRequest
from sa_atp.lab.peers import switchml
from sa_atp.lab.report.text import NBSP, digits, duration, number, percent, policy_name
from sa_atp.lab.reproduce.page import PLACES
from sa_atp.lab.reproduce.points import WORK, Compute
from sa_atp.lab.reproduce.settings import RANDOM, SIZES, Setting, constant, pauses, with_
from sa_atp.lab.runs.points import Point
from sa_atp.protocol.packets.spec import SLOTS
from sa_atp.switches.artefacts import CompiledProgram

NAME = "protocols"
OWN, PEER = "atp", "switchml"
POLICIES = (OWN, "sa-atp", PEER)
REQUEST = LossRequest(
    workers=4, bytes=1_000_000, iterations=1, lanes=256, link_mbps=100.0, delay_us=20, seed=1, against=(PEER,)
)
LOSSES = (0.0, 0.001, 0.01, 0.05)
TUNING_LOSS = 0.01
WINDOWS = (8, 16, 32, switchml.PEER.slots)
STEPS = 12


def settings(slots: int) -> tuple[Setting, ...]:
    """The plans with stragglers. Args: slots: SwitchML's window."""
    base = with_(
        SIZES,
        run={"steps": STEPS},
        topology={"link_mbps": REQUEST.link_mbps, "delay_us": REQUEST.delay_us},
        sim={"network": "packets"},
        switchml={"slots": slots},
    )
    return (
        Setting("one of 4 workers always 4 times slower", with_(base, straggler=constant(4))),
        Setting("another one of 4 in each step, 2 to 8 times slower", with_(base, straggler=RANDOM)),
        Setting("each of 4 pauses with 16 %, for 0.5 to 2 iterations", with_(base, straggler=pauses(0.16))),
    )


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """Measures one protocol's goodput; see runs.points. Returns: a `LossRow`."""
    request, protocol = LossRequest(**arguments["request"]), arguments["protocol"]
    (row,) = loss.measure_protocol(request, protocol, loss.programs(request)[protocol], [arguments["loss"]])
    return asdict(row)


def _goodput_point(protocol: str, slots: int, share: float, seed: int) -> Point:
    request = asdict(replace(REQUEST, seed=seed, slots=slots))
    name = f"{NAME}: {protocol}, {slots} slots, loss {share:g}, seed {seed}"
    return Point(name, f"{__name__}:measure", {"request": request, "protocol": protocol, "loss": share})


def find(tuning_seed: int, seeds: Sequence[int], steps: int | None, compute: Compute) -> dict[str, Any]:
    """Runs all points. Returns: their part of reproduce.json. Raises: SaAtpError."""
    tried = {slots: _goodput_point(PEER, slots, TUNING_LOSS, tuning_seed) for slots in WINDOWS}
    tuned = compute(list(tried.values()))
    goodput_of = {slots: tuned[point.name]["goodput_mbps"] for slots, point in tried.items()}
    best = max(goodput_of, key=lambda slots: goodput_of[slots])
    in_memory = memory(best)
    rows = [(share, loss.SLOTS) for share in LOSSES]
    rows.append((TUNING_LOSS, best * in_memory[PEER]["versions_of_a_slot"]))  # about as much memory as SwitchML's
    sums = {
        (share, own, policy): [
            _goodput_point(protocol, slots, share, seed)
            for seed in (seeds if share else seeds[:1])  # without loss nothing is drawn
        ]
        for share, own in rows
        for policy, protocol, slots in ((OWN, OURS, own), (PEER, PEER, best))
    }
    trainings = {
        setting.name: [
            Point(f"{NAME}: {setting.name}, {best} slots, seed {seed}", WORK,
                  {"plan": setting.plan(POLICIES, seed, steps).as_dict(), "where": f"reproduce, {setting.name}"})
            for seed in seeds
        ]
        for setting in settings(best)
    }  # fmt: skip
    points = [point for group in (*sums.values(), *trainings.values()) for point in group]
    results = compute(list({point.name: point for point in points}.values()))

    def sums_of(share: float, own: int, policy: str) -> dict[str, Any]:
        found = [results[point.name] for point in sums[share, own, policy]]
        return {key: [row[key] for row in found] for key in ("goodput_mbps", "fraction_of_limit", "sums_wrong")}

    def steps_of(setting: Setting, policy: str) -> dict[str, Any]:
        runs = [results[point.name][policy] for point in trainings[setting.name]]
        times = [round(run["iteration_s"], PLACES) for run in runs]
        return {"iteration_s": times, "sums_wrong": [run["sums_wrong"] for run in runs]}

    return {
        "all_reduce": {key: getattr(REQUEST, key) for key in ("workers", "bytes", "lanes", "link_mbps", "delay_us")},
        "tuning": {
            "seed": tuning_seed,
            "loss": TUNING_LOSS,
            "goodput_mbps": {str(slots): mbps for slots, mbps in goodput_of.items()},
        },
        "goodput": [
            {"loss": share, "slots": own} | {policy: sums_of(share, own, policy) for policy in (OWN, PEER)}
            for share, own in rows
        ],
        "memory": in_memory,
        "steps": steps or STEPS,
        "stragglers": [
            {"name": setting.name, "plan": {name: dict(keys) for name, keys in setting.tables.items()}}
            | {policy: steps_of(setting, policy) for policy in POLICIES}
            for setting in settings(best)
        ],
    }


def memory(slots: int) -> dict[str, dict[str, int]]:
    """The registers of each protocol's compiled program. Args: slots: SwitchML's window."""
    programs = loss.programs(REQUEST)
    return {
        OWN: _registers(programs[OURS], SLOTS, loss.SLOTS, loss.SLOTS),
        PEER: _registers(programs[PEER], switchml.SLOTS, slots, switchml.PEER.slots),
    }


def _registers(program: CompiledProgram, in_all: int, slots: int, by_default: int) -> dict[str, int]:
    """Args: in_all: slots of the program; slots: those of a job here; by_default: of a job that says nothing."""
    arrays = json.loads(program.device_config())["register_arrays"]
    of_slot = sum(array["bitwidth"] * array["size"] for array in arrays) // 8 // in_all
    return {
        "versions_of_a_slot": max(array["size"] for array in arrays) // in_all,
        "bytes_of_a_slot": of_slot,
        "slots": slots,
        "bytes": slots * of_slot,
        "slots_by_default": by_default,
        "bytes_by_default": by_default * of_slot,
    }


def sums_wrong(found: Mapping[str, Any]) -> int:
    """Args: found: as `find` returns it, and so in what follows."""
    rows = [*found["goodput"], *found["stragglers"]]
    return sum(sum(row[policy]["sums_wrong"]) for row in rows for policy in POLICIES if policy in row)


# --- words ------------------------------------------------------------------------------------------------------------


def table(found: Mapping[str, Any]) -> Table:
    """The table for a terminal."""
    head, *rows = _cells(found)
    made = terminal.table(head[:1], head[1:])
    for row in rows:
        made.add_row(*row)
    return made


def _cells(found: Mapping[str, Any]) -> list[list[str]]:
    """The cells of the table, its heading first."""
    registers = [found["memory"][policy] for policy in (OWN, PEER)]

    def goodput(row: Mapping[str, Any]) -> list[str]:
        lost = f"{100 * row['loss']:g}{NBSP}%"
        what = f"goodput, links lose {lost} each way, {policy_name(OWN)} with {number(row['slots'])} slots"
        middle = [[median(row[p][key]) for key in ("goodput_mbps", "fraction_of_limit")] for p in (OWN, PEER)]
        return [what, *(f"{digits(mbps)}{NBSP}Mbit/s ({100 * share:.1f}{NBSP}%)" for mbps, share in middle)]

    def kept(what: str, key: str) -> list[str]:
        cells = [
            f"{number(r['slots' + key])} slots: {number(round(r['bytes' + key] / 1000))}{NBSP}kB" for r in registers
        ]
        return [f"memory: {what}", *cells]

    pairs = [
        *map(goodput, found["goodput"]),
        ["memory: versions of a slot", *(str(each["versions_of_a_slot"]) for each in registers)],
        [
            "memory: registers of a slot, for one packet",
            *(f"{number(each['bytes_of_a_slot'])}{NBSP}bytes" for each in registers),
        ],
        kept("registers of a job, in this table", ""),
        kept("registers of a job, by default", "_by_default"),
    ]
    return [
        ["", *map(policy_name, POLICIES)],
        *([what, ours, f"as {policy_name(OWN)}", theirs] for what, ours, theirs in pairs),
        *(
            [f"stragglers: {row['name']}", *(duration(median(row[policy]["iteration_s"])) for policy in POLICIES)]
            for row in found["stragglers"]
        ),
    ]


def section(found: Mapping[str, Any]) -> str:
    """The part of the page, as Markdown."""
    head, *rows = _cells(found)
    task, tuning, of_peer = found["all_reduce"], found["tuning"], found["memory"][PEER]
    slots, default = of_peer["slots"], of_peer["slots_by_default"]
    tried = join(f"{digits(mbps)} with {window}" for window, mbps in tuning["goodput_mbps"].items())
    empty = [percent(4 * task["lanes"] * window / task["bytes"]) for window in (slots, default)]
    lines = [
        "## Protocols on the same switch",
        "",
        f"SwitchML's protocol ([policies.md](policies.md#switchml)) beside this project's own, that of ATP and SA-ATP: "
        f"{task['workers']} workers, links of {digits(task['link_mbps'])}{NBSP}Mbit/s and {task['delay_us']}{NBSP}µs, "
        f"{task['lanes']} values in a packet. Every packet is simulated, with the compiled programs. Goodput, also as a "
        f"share of what a link can carry in such packets, is that of an all-reduce of {task['bytes'] / 1e6:g}{NBSP}MB. "
        f"With stragglers it is the time of a step, with [SA-ATP's settings](#sa-atp) on these links, in {found['steps']} "
        f"steps a run. Numbers are medians over seeds. Sums that were wrong: {sums_wrong(found)}.",
        "",
        f"| {' | '.join(head)} |",
        f"|---|{'--:|' * len(POLICIES)}",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        "SwitchML has no server that sums what the switch cannot. So a slot has two versions: one is summed while the "
        "other keeps the last result, for workers that have missed it. A worker of SwitchML sends again what has no result "
        "after a time-out; ours asks when a result is late, and sends what is missing. Neither SwitchML nor ATP helps a "
        "slow worker, and all wait for it; with SA-ATP others compute what it has left.",
        "",
        "SwitchML's window is its slots. It is fixed and has to fit the links, where ours follows queues and losses. So "
        f"its slots are tuned: with a loss of {100 * tuning['loss']:g}{NBSP}% and seed {tuning['seed']} its goodput in "
        f"Mbit/s is {tried} slots. The table has it with {slots}; the default of {default} is the paper's for links of "
        f"10 Gbit/s. A first window carries exponents and no values: as many bytes as {empty[0]} of this tensor with "
        f"{slots} slots, {empty[1]} with {default}. Ours has more slots, and needs them where links lose packets: in one "
        "row it has about as much memory as SwitchML.",
    ]
    return "\n".join(lines) + "\n"
