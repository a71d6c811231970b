"""`sa-atp job`: admits, shows and removes aggregation jobs on a switch."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import plural
from sa_atp.cli.deploy import add_connection, make_client

if TYPE_CHECKING:
    from sa_atp.switches.control.job_reading import InstalledJob
    from sa_atp.switches.control.jobspec import JobSpec, Member
    from sa_atp.switches.control.writer import Writer

HOST = "IP:UDP_PORT,MAC,SWITCH_PORT"


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser("job", help="admit, inspect and remove aggregation jobs on a switch")
    commands = parser.add_subparsers(title="commands", dest="job_command", required=True, metavar="COMMAND")
    _add_add(commands)
    lister = commands.add_parser("list", help="list the jobs of a switch")
    show = commands.add_parser("show", help="show one job, with what the switch has counted for it")
    show.add_argument("job", type=int)
    remove = commands.add_parser("remove", help="remove a job from a switch")
    remove.add_argument("job", type=int)
    for command, run in ((lister, run_list), (show, run_show), (remove, run_remove)):
        add_connection(command)
        command.add_argument("--json", action="store_true", help="print the result as one JSON object")
        command.set_defaults(run=run, waits="waiting for the switch")


def _add_add(commands: Any) -> None:
    parser = commands.add_parser(
        "add",
        help="admit a job, or change one",
        description="Admits a job to a switch, or changes the one with that number; only differences are written.",
    )
    parser.add_argument("job", type=int, nargs="?", help="its number, 1 to 255")
    parser.add_argument(
        "--file", metavar="SPEC.json", help="the whole job, as `show --json` prints its spec; - is stdin"
    )
    parser.add_argument(
        "--member", action="append", default=[], metavar=f"RANK={HOST}", help="a worker; repeat for each"
    )
    parser.add_argument("--ps", metavar=HOST, help="the parameter server")
    parser.add_argument("--uplink", metavar=HOST, help="the next level (default: the parameter server)")
    parser.add_argument(
        "--level", choices=("root", "leaf"), default="root", help="where complete sums go (default: root)"
    )
    parser.add_argument("--epoch", type=int, default=0, help="incarnation of the job (default: 0)")
    parser.add_argument(
        "--fan-in", metavar="MASK", help="bits that make a sum complete (default: the bit of each member's rank)"
    )
    parser.add_argument(
        "--slots",
        default="1024",
        metavar="[BASE:]COUNT",
        help="its share of the slots (default: 1024, at the first free)",
    )
    parser.add_argument("--group", type=int, help="its multicast group (default: the job's number)")
    parser.add_argument(
        "--ttl-ms",
        type=float,
        default=100.0,
        metavar="MS",
        help="how long an incomplete sum may be idle (default: 100)",
    )
    parser.add_argument(
        "--loop-port", type=int, metavar="PORT", help="of a Tofino: its recirculation port (68; Tofino 2: 6)"
    )
    add_connection(parser)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.set_defaults(run=run_add, waits="waiting for the switch")


# --- commands ---------------------------------------------------------------------------------------------------------


def run_add(options: argparse.Namespace) -> int:
    from sa_atp.switches.control import job_reading, jobs, jobspec

    if options.file:
        spec = jobspec.from_json(_read_json(options.file))
    elif options.job is None or not options.member or options.ps is None:
        raise UserError("job add: expected --file SPEC.json, or a job number with --member and --ps")
    else:
        spec = _spec(options)
    with make_client(options) as client:
        if not options.file and ":" not in options.slots:
            spec = dataclasses.replace(spec, slot_base=_base(client, spec))
        written = jobs.install(client, spec)
    if options.json:
        print(json.dumps({"job": spec.job, "written": written, "spec": spec.to_json()}))
    else:
        print(f"{_line(job_reading.InstalledJob(job=spec.job, spec=spec))}: {plural(written, 'update')} written")
    return 0


def run_list(options: argparse.Namespace) -> int:
    from sa_atp.switches.control import jobs

    with make_client(options, read_only=True) as client:
        installed = jobs.read_jobs(client)
    if options.json:
        print(json.dumps({"jobs": [_as_json(each) for each in installed]}))
    else:
        for each in installed:
            print(_line(each))
        if not installed:
            print("no jobs", file=sys.stderr)
    return 0


def run_show(options: argparse.Namespace) -> int:
    from sa_atp.switches.control import jobs

    with make_client(options, read_only=True) as client:
        (installed,) = _find(jobs.read_jobs(client), options.job)
        counted = jobs.counters(client, options.job)
    if options.json:
        counts = {e.name.lower(): {"packets": c.packets, "bytes": c.bytes} for e, c in counted.items()}
        print(json.dumps({**_as_json(installed), "counters": counts}))
        return 0
    print(_line(installed))
    if installed.spec is not None:
        for member in installed.spec.members:
            print(f"  {member}")
        print(f"  parameter server {installed.spec.parameter_server}")
        print(f"  uplink {installed.spec.uplink}")
    for event, counts_ in counted.items():
        if counts_.packets:
            size = "" if counts_.bytes is None else f", {plural(counts_.bytes, 'byte')}"
            print(f"  {event.name.lower()}: {plural(counts_.packets, 'packet')}{size}")
    return 0


def run_remove(options: argparse.Namespace) -> int:
    from sa_atp.switches.control import jobs

    with make_client(options) as client:
        _find(jobs.read_jobs(client), options.job)
        written = jobs.remove(client, options.job)
    if options.json:
        print(json.dumps({"job": options.job, "written": written}))
    else:
        print(f"job {options.job}: removed, {plural(written, 'update')} written")
    return 0


# --- options and output -----------------------------------------------------------------------------------------------


def _find(installed: "list[InstalledJob]", job: int) -> "list[InstalledJob]":
    found = [each for each in installed if each.job == job]
    if not found:
        known = ", ".join(str(each.job) for each in installed) or "none"
        raise UserError(f"job {job} is not on the switch; it has {known}")
    return found


def _as_json(installed: "InstalledJob") -> dict[str, Any]:
    return {
        "job": installed.job,
        "spec": None if installed.spec is None else installed.spec.to_json(),
        "problems": list(installed.problems),
    }


def _line(installed: "InstalledJob") -> str:
    problems = f"; {'; '.join(installed.problems)}" if installed.problems else ""
    spec = installed.spec
    if spec is None:
        return f"job {installed.job}: incomplete{problems}"
    last = spec.slot_base + spec.slot_count - 1
    return (
        f"job {spec.job}: epoch {spec.epoch}, {spec.level}, {plural(len(spec.members), 'member')}, "
        f"fan-in 0x{spec.fan_in:x}, slots {spec.slot_base} to {last}, group {spec.group}{problems}"
    )


def _base(writer: "Writer", spec: "JobSpec") -> int:
    """The first slot of a job if the user does not say: its present one, or else that of the first free range."""
    from sa_atp.switches.control import jobs

    for each in jobs.read_jobs(writer):
        if each.job == spec.job and each.spec is not None and each.spec.slot_count == spec.slot_count:
            return each.spec.slot_base
    return jobs.free_slots(writer, spec.slot_count)


def _spec(options: argparse.Namespace) -> "JobSpec":
    from sa_atp.protocol.packets import spec as wire
    from sa_atp.switches.control import jobspec

    members = tuple(_member(text) for text in options.member)
    server = _host(options.ps, "--ps")
    if options.fan_in is None:
        fan_in = sum({1 << m.rank for m in members if m.rank < wire.CONTRIBUTION_BITS})
        if not fan_in:
            raise UserError(f"--fan-in: required where no member has a rank below {wire.CONTRIBUTION_BITS}")
    else:
        fan_in = _integer(options.fan_in, "--fan-in", "a set of bits such as 0xf")
    base, separator, count = options.slots.rpartition(":")
    slot_count = _integer(count, "--slots", "[BASE:]COUNT")
    slot_base = _integer(base, "--slots", "[BASE:]COUNT") if separator else 0
    return jobspec.JobSpec(
        job=options.job,
        epoch=options.epoch,
        fan_in=fan_in,
        slot_base=slot_base,
        slot_count=slot_count,
        group=options.job if options.group is None else options.group,
        ttl_ticks=_ticks(options.ttl_ms),
        level=options.level,
        members=members,
        parameter_server=server,
        uplink=server if options.uplink is None else _host(options.uplink, "--uplink"),
        loop_port=options.loop_port,
    )


def _ticks(ttl_ms: float) -> int:
    from sa_atp.protocol.packets import spec as wire

    if not 0 < ttl_ms < 1e9:
        raise UserError(f"--ttl-ms {ttl_ms}: expected a time above 0 and below 1e9")
    return max(1, round(ttl_ms * 1000 / wire.TICK_US))


def _member(text: str) -> "Member":
    rank, separator, host = text.partition("=")
    if not separator:
        raise UserError(f"--member {text}: expected RANK={HOST}")
    return _host(host, "--member", rank=_integer(rank, "--member", f"RANK={HOST}"))


def _host(text: str, option: str, rank: int = -1) -> "Member":
    from sa_atp.switches.control.jobspec import Member

    parts = text.split(",")
    ip, separator, udp_port = parts[0].partition(":")
    if len(parts) != 3 or not separator:
        raise UserError(f"{option} {text}: expected {HOST}, like 10.0.0.1:21313,02:00:00:00:00:01,1")
    port, switch_port = _integer(udp_port, option, HOST), _integer(parts[2], option, HOST)
    try:
        return Member(ip=ip, udp_port=port, mac=parts[1], switch_port=switch_port, rank=rank)
    except UserError as error:
        raise UserError(f"{option} {text}: {error}") from None


def _integer(text: str, option: str, expected: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise UserError(f"{option}: {text!r} is not a number: expected {expected}") from None


def _read_json(path: str) -> Any:
    from sa_atp.basics.inputs import parse_json, read_text

    try:
        text = sys.stdin.read() if path == "-" else read_text(Path(path))
    except UnicodeDecodeError:
        raise UserError(f"{path}: not text in {sys.stdin.encoding}") from None
    found = parse_json(text, path)
    # `show --json` prints the spec inside an object
    return found["spec"] if isinstance(found, dict) and isinstance(found.get("spec"), dict) else found
