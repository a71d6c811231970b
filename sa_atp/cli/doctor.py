"""`sa-atp doctor`: what is installed, what is missing, what would run; and why a job is stuck."""

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import plural

if TYPE_CHECKING:
    from sa_atp.doctor import Examination, Finding
    from sa_atp.protocol.server.job_status import JobStatus

EXIT_MISSING_PART = 3


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="say what would run here, or why a job is stuck",
        description="Tries what the project needs of this machine: packages, programs, the kernel, the compiled P4 "
        "programs. Exit status 3: something that the demo needs is missing. With --server, asks a parameter server about "
        "its jobs, and names the ranks that each waits for. Exit status 1: a job is stuck.",
    )
    parser.add_argument("--server", metavar="udp://HOST:PORT", help="diagnose the jobs of this parameter server")
    parser.add_argument("--job", metavar="NAME", help="only this job")
    parser.add_argument("--timeout", type=float, default=3.0, metavar="SECONDS",
                        help="longest wait for an answer of the server (default: 3)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.set_defaults(run=run, waits="trying what this machine has")


def run(options: argparse.Namespace) -> int:
    if options.server is not None:
        return _diagnose(options)
    if options.job is not None:
        raise UserError("--job needs --server, the parameter server that it runs on")
    from sa_atp.doctor import examine

    if options.json:
        examination = examine()
        print(json.dumps(_as_json(examination)))
    else:
        examination = examine(_Lines().tell)
        _print_commands(examination)
    return 0 if examination.demo_runs else EXIT_MISSING_PART


# --- the machine ----------------------------------------------------------------------------------------------------------


def _as_json(examination: "Examination") -> dict[str, Any]:
    return {
        "demo_runs": examination.demo_runs,
        "findings": {
            title: [dataclasses.asdict(finding) for finding in group] for title, group in examination.groups.items()
        },
        "commands": [{"name": c.name, "runs": not c.missing, "missing": list(c.missing)} for c in examination.commands],
    }


class _Lines:
    """Prints each finding as soon as it is known, below the title of its group."""

    def __init__(self) -> None:
        self._title = ""

    def tell(self, title: str, finding: "Finding") -> None:
        from sa_atp.basics.waiting import said
        from sa_atp.doctor import DEMO, NEEDS

        if title != self._title:
            self._title = title
            print(title)
        print(_finding_line(finding, needed=finding.name in NEEDS[DEMO]), flush=True)
        said()


def _print_commands(examination: "Examination") -> None:
    print("What would run")
    for command in examination.commands:
        print(f"  {'yes' if not command.missing else 'no':<8} {command.name}" + _without(command.missing))
    verdict = "The demo would run." if examination.demo_runs else "The demo would not run: see what is missing above."
    print(f"{verdict} It needs nothing of what is marked with -.")


def _finding_line(finding: "Finding", *, needed: bool) -> str:
    if finding.ok:
        return f"  {'ok':<8} {finding.name}: {finding.detail}"
    how = f" [{finding.how}]" if finding.how else ""
    return f"  {'MISSING' if needed else '-':<8} {finding.name}: {finding.detail}{how}"


def _without(missing: tuple[str, ...]) -> str:
    return f" (lacks {', '.join(missing)})" if missing else ""


# --- a job ----------------------------------------------------------------------------------------------------------------


def _diagnose(options: argparse.Namespace) -> int:
    from sa_atp.net.job_status import ask_for_jobs
    from sa_atp.net.sockets.addresses import parse_address

    if not 0 < options.timeout < 1e6:
        raise UserError(f"--timeout {options.timeout}: expected a positive number of seconds")
    address = parse_address(options.server)
    jobs = ask_for_jobs(address, timeout_s=options.timeout)
    if options.job is not None:
        known = ", ".join(repr(job.name) for job in jobs) or "none"
        jobs = [job for job in jobs if job.name == options.job]
        if not jobs:
            raise UserError(f"--job {options.job}: the parameter server has no such job; it has {known}")
    return _report_jobs(jobs, as_json=options.json)


def _report_jobs(jobs: "list[JobStatus]", *, as_json: bool) -> int:
    from dataclasses import replace

    from msgspec.structs import asdict

    from sa_atp.protocol.server.diagnosis import diagnose

    diagnoses = [(job, diagnose(job)) for job in jobs]
    stuck = any(diagnosis.stuck for _, diagnosis in diagnoses)
    if as_json:
        found = [
            {
                **dataclasses.asdict(replace(job, members=())),
                "members": [{**asdict(m), "address": [m.ip, m.port]} for m in job.members],
                "state": job.state.value,
                "verdict": diagnosis.verdict,
                "stuck": diagnosis.stuck,
                "waited_for": list(diagnosis.ranks),
            }
            for job, diagnosis in diagnoses
        ]
        print(json.dumps({"stuck": stuck, "jobs": found}))
        return int(stuck)
    if not diagnoses:
        print("The parameter server has no jobs: no worker has asked to join one.")
    for job, diagnosis in diagnoses:
        named = f"job {job.name!r} (number {job.number}, epoch {job.epoch})"
        print(f"{named}: {job.state.value}, {plural(job.world_size, 'rank')}")
        for line in diagnosis.members:
            print(f"  {line}")
        print(f"  {'STUCK' if diagnosis.stuck else 'ok' if not job.failure else 'failed'}: {diagnosis.verdict}")
    return int(stuck)
