"""Commands on terminals that are narrow, ASCII only, closed or full, and Ctrl-C."""

import io
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.limits import limited
from rich.console import Console
from rich.table import Table

import sa_atp as package
from sa_atp.basics import terminal, waiting
from sa_atp.basics.checkout import SOURCES, commit_of
from sa_atp.cli import main
from sa_atp.cli.parts import sweep
from sa_atp.lab.experiments import progress as _progress
from sa_atp.lab.plans.plan import Plan
from sa_atp.net.sockets.ports import CaptureWriter
from sa_atp.protocol.packets.control import Alive, encode
from sa_atp.protocol.packets.frames import Endpoint, mac_for, wrap
from sa_atp.protocol.packets.spec import UDP_PORT

from .conftest import sa_atp

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "sa_atp", *map(str, words)]


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """A capture of a control message whose text is not ASCII."""
    packet = encode(Alive(oldest=0), request=1)[:20] + '{"x":"é–"}'.encode()
    source, target = (Endpoint(mac_for(ip), (ip, UDP_PORT)) for ip in ("10.0.0.1", "10.0.0.2"))
    frames = wrap(np.frombuffer(packet, np.uint8).reshape(1, -1), source, target)
    made = CaptureWriter(tmp_path / "one.pcap")
    made.write(frames, np.array([frames.shape[1]]), 0)
    made.close()
    return tmp_path / "one.pcap"


# --- progress -------------------------------------------------------------------------------------------------------------


Clock = Callable[[int], list[str]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Clock:
    """Lets time pass, second by second, up to a time. Returns: what is said until then, but for times in brackets."""
    now = 0

    def said_until(end: int) -> list[str]:
        nonlocal now
        for second in range(now + 1, end + 1):
            now = second
            with waiting._waits.lock:
                if waiting._waits.entries:
                    waiting._waits.tell()
        return [line.rpartition("] ")[2] for line in capsys.readouterr().err.splitlines()]

    for module in (waiting, _progress):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: float(now), sleep=time.sleep))
    monkeypatch.setattr(waiting, "SILENCE_S", 4.0)
    return said_until


def test_a_stage_is_said_once_and_then_after_10_30_and_60_s_and_each_minute(clock: Clock) -> None:
    """In lines, where there is no terminal."""
    long = "waiting for" + " a process with a long name" * 10
    with _progress.TerminalProgress() as progress:
        progress(long)
        progress.steps(2, 40)
        progress.steps(3, 40)
        assert clock(9) == [long]
        taken = [10, 30, 60, 120, 180]
        assert clock(200) == [f"{long}, {s} s so far, 3 of 40 steps, {s / 3 * 37 / 60:.0f} min left" for s in taken]
        progress("another stage")
        progress.steps(4, 10, "runs")
        assert clock(215) == ["another stage", "another stage, 10 s so far, 4 of 10 runs, 15 s left"]


def test_after_the_last_stage_a_command_is_not_said_to_wait_at_once(clock: Clock) -> None:
    with waiting.waiting("loading packages"):
        with _progress.TerminalProgress() as progress:
            progress("drawing")
            assert clock(9) == ["drawing"]
        assert clock(12) == []


def test_steps_are_said_in_lines_on_a_terminal_that_cannot_draw_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for term, said in (("dumb", r"\[ +\d+\.\d s\] stage\n"), ("xterm", r"\x1b.*stage.*")):
        monkeypatch.setenv("TERM", term)
        shown = Terminal()
        monkeypatch.setattr(sys, "stderr", shown)
        with _progress.TerminalProgress() as progress:
            progress("stage")
        assert re.fullmatch(said, shown.getvalue(), re.DOTALL)


def test_a_command_says_what_takes_long(clock: Clock) -> None:
    with waiting.waiting("compiling"):
        assert clock(3) == []
        with waiting.waiting("compiling a part"):
            assert clock(20) == [f"sa-atp: compiling a part, {s} s so far" for s in (1, 10)]
        assert clock(33) == [f"sa-atp: compiling, {s} s so far" for s in (21, 30)]
    assert clock(300) == []  # nothing is waited for


def test_what_is_announced_is_not_said_again_at_once(clock: Clock) -> None:
    with waiting.announced("compiling", "sa-atp ps"):
        assert clock(12) == ["sa-atp ps: compiling", "sa-atp ps: compiling, 10 s so far"]


def test_many_short_waits_are_no_silence_and_what_others_say_is_none(clock: Clock) -> None:
    with waiting.waiting("compiling"):
        for end in range(1, 9):
            with waiting.waiting("compiling a part"):
                said = clock(end)
            assert said == (["sa-atp: compiling a part, 1 s so far"] if end in (4, 8) else [])
        waiting.said()
        assert clock(11) == []
        assert clock(12) == ["sa-atp: compiling, 12 s so far"]
        with waiting.nothing_waited_for():
            assert clock(70) == []
        assert clock(73) == []  # what follows has only begun
        assert clock(74) == ["sa-atp: compiling, 74 s so far"]


def test_a_thread_says_it_as_long_as_something_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "SILENCE_S", 0.0)
    said = ""
    with waiting.waiting("compiling"):
        while not said.endswith("\n"):
            said += capsys.readouterr().err
            time.sleep(0.1)
    assert re.fullmatch(r"sa-atp: compiling, \d+ s so far\n", said)


# --- tables ---------------------------------------------------------------------------------------------------------------


def printed(width: int, table: Table) -> list[str]:
    file = io.StringIO()
    terminal.print_table(Console(file=file, width=width), table)
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [120, 40, 20, 5])
def test_labels_are_folded_and_numbers_are_not_cut(width: int) -> None:
    table = Table(box=None)
    table.add_column("what it is", no_wrap=False)
    table.add_column("goodput per worker", justify="right")
    table.add_column("ratio", justify="right")
    table.add_row("over veth pairs, with everything that belongs to it", "12\u00a0345\u00a0678 Mbit/s", "0.123 of 1")
    lines = printed(width, table)
    assert any("12\u00a0345\u00a0678 Mbit/s" in line and "0.123 of 1" in line for line in lines)
    text = " ".join(" ".join(lines).split())
    for words in ("what it is", "goodput per worker ratio", "over veth pairs, with everything that belongs to it"):
        assert all(word in text for word in words.split())
    assert "…" not in text


def test_tables_of_sweeps(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    plan = Plan()
    cell = {"mean": 1.234, "ci95": [1.1, 1.3]}
    points = [{"value": 123456, "policies": dict.fromkeys(plan.run.policies, cell)}]
    numbers = {"key": "straggler.slowdown", "quantity": "mean iteration time", "points": points}
    sweep.print_numbers(plan, numbers, Path("runs/[a b]"))
    said = capsys.readouterr().out.replace("\u00a0", " ")
    [row] = [line for line in said.splitlines() if "123456" in line]
    assert row.count("1.23 s ± 100 ms") == len(plan.run.policies)
    assert "[a b]" in " ".join(said.split())  # and is no style


# --- characters -----------------------------------------------------------------------------------------------------------


def test_a_terminal_that_has_only_ascii(capture: Path) -> None:
    done = sa_atp("dissect", str(capture), environment=ASCII)
    assert (done.returncode, done.stdout.rstrip()[-11:]) == (0, '{"x":"e-"}'.rjust(11)), done.stderr
    assert "Traceback" not in done.stderr


def test_reports_are_legible_in_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    terminal.prepare_streams()
    print("157\u00a0ms ± 3\u00a0µs, 3.1×, –, 漢 \udce9")
    sys.stdout.flush()
    assert raw.getvalue() == b"157 ms +- 3 us, 3.1x, -, ? ?\n"


def test_every_plan_can_be_read_in_every_locale(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('# für alle\n[run]\nsteps = 0\npolicies = ["é"]\n', encoding="utf-8")
    done = sa_atp("run", str(plan), environment=ASCII)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"sa-atp: {plan}: run.steps = 0: expected 1 to 100000\n"


# --- readers --------------------------------------------------------------------------------------------------------------


BUFFERED, UNBUFFERED = "", "1"
PRINT_TABLE = """
import sys
import time
from types import SimpleNamespace
from sa_atp import cli; from sa_atp.basics import terminal
table = SimpleNamespace(run=lambda _: terminal.console().print("x"))
cli.build_parser = lambda: SimpleNamespace(parse_args=lambda _: table)
sys.exit(cli.main())
"""


def written_to(file: int, *words: str, unbuffered: str) -> "subprocess.CompletedProcess[str]":
    """Runs a command whose output goes to a file descriptor."""
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    return subprocess.run(words, stdout=file, stderr=subprocess.PIPE, text=True, env=environment, check=False)


@pytest.mark.parametrize("unbuffered", [BUFFERED, UNBUFFERED])
def test_a_closed_pipe(capture: Path, unbuffered: str) -> None:
    """As with `| true`: the output that is flushed at the end has no reader."""
    reader, writer = os.pipe()
    os.close(reader)
    for words in (command("--help"), command("dissect", capture), [sys.executable, "-c", PRINT_TABLE]):
        done = written_to(writer, *words, unbuffered=unbuffered)
        # newer versions of argparse look away if they cannot write
        expected = (0, 141) if unbuffered and "--help" in words else (141,)
        assert done.returncode in expected
        assert ("Traceback" in done.stderr, "Exception" in done.stderr) == (False, False)
    os.close(writer)


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_closed_standard_error_loses_no_result(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some versions of Python try again at exit to flush standard error."""
    with Path("/dev/full").open("w") as full:
        full.write("progress")  # stays in its buffer
        monkeypatch.setattr(sys, name, full)
        failure = terminal.flush_streams()
        assert (failure is not None) == (name == "stdout")


@pytest.mark.parametrize("unbuffered", [BUFFERED, UNBUFFERED])
def test_a_full_disk_is_told(capture: Path, unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = written_to(full.fileno(), *command("dissect", capture), unbuffered=unbuffered)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "sa-atp: cannot write to standard output: No space left on device"
    assert "Exception" not in done.stderr


@pytest.mark.parametrize(
    ("most", "place"), [(1000, ".*sa_atp_program_.*pickle"), (50_000, r"compiled code to the cache \(SA_ATP_CACHE\)")]
)
def test_a_cache_that_cannot_grow_is_told(tmp_path: Path, most: int, place: str) -> None:
    """Python does not say which file could not be written."""
    p4 = Path(__file__).parents[1] / "p4"
    stf = command("stf", p4 / "router.json", p4 / "router.stf")
    done = subprocess.run(
        limited("RLIMIT_FSIZE", most, *stf), capture_output=True, check=False, text=True,
        env={**os.environ, "SA_ATP_CACHE": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1
    assert re.fullmatch(f"sa-atp: cannot write {place}: File too large", done.stderr.splitlines()[-1])


def test_closed_streams(capture: Path) -> None:
    for closed in (1, 2):
        done = subprocess.run(
            ["sh", "-c", f'exec "$@" {closed}>&-', "sh", *command("dissect", capture)], capture_output=True, check=False
        )
        assert (done.returncode, b"Traceback" in done.stderr) == (0, False)


# --- Ctrl-C ---------------------------------------------------------------------------------------------------------------

# Presses Ctrl-C when a module is imported; `swallow` makes of it what NumPy makes of it.
PRESS = """
import os, signal, sys
at, swallow = sys.argv[1], sys.argv[2] == "swallow"

class Finder:
    def find_spec(self, name, path, target=None):
        if name == at:
            sys.meta_path.remove(self)
            try:
                os.kill(os.getpid(), signal.SIGINT)
                for _ in range(1000): pass
            except KeyboardInterrupt:
                if swallow: raise ImportError("could not import") from None
                raise

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
from sa_atp.cli import main
sys.exit(main(["run", "no such plan"]))
"""


@pytest.mark.parametrize(
    "at",
    [
        "argparse",
        "sa_atp.basics.errors",
        "sa_atp.cli.experiments.bench",
        "sa_atp.cli.up",
        "sa_atp.switches.artefacts",
        "numpy",
    ],
)
def test_ctrl_c_while_it_starts(at: str) -> None:
    done = subprocess.run([sys.executable, "-c", PRESS, at, ""], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "sa-atp: interrupted\n")


def test_ctrl_c_that_a_library_makes_an_error_of() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRESS, "numpy", "swallow"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "sa-atp: interrupted\n")


def test_an_error_that_is_a_bug_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sa_atp.cli.build_parser", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main([])


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    out = capsys.readouterr().out
    assert end.value.code == 0
    assert re.fullmatch(
        rf"sa-atp {package.__version__} \((commit [0-9a-f]{{40}}(\+changes)?, )?"
        rf"Python {platform.python_version()}\)\n",
        out,
    )
    commit = commit_of(SOURCES)  # None in an installed package, or without git
    assert ("commit " in out) == (commit is not None)
    assert (commit or "") in out


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["rnu", "demo"], "run"),
        (["doktor"], "doctor"),
        (["bench", "allreduse"], "allreduce"),
        (["job", "lst"], "list"),
        (["run", "demo", "--backend", "mininett"], "mininet"),
        (["run", "demo", "--bakcend", "sim"], "--backend"),
        (["bench", "loss", "--mbites=3"], "--mbytes"),
        (["run", "demo", "--backend", "simulation"], "sim"),
        (["run", "demo", "--policies", "ps"], """--set 'run.policies=["ps"]'"""),
        (["run", "--policies=ssp,ps", "demo"], """--set 'run.policies=["ssp", "ps"]'"""),
        (["run", "demo", "--slowdown", "3"], "--set straggler.slowdown=3"),
        (["map", "demo", "--batch-size", "8"], "--set job.batch_size=8"),
        (["run", "demo", "--set", "help.grade", "clone"], "--set help.grade=clone"),
    ],
)
def test_the_word_that_was_meant(words: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.partition(" (did you mean ")[2].startswith(f"{meant}?); see sa-atp ")


def test_an_argument_is_no_option(capsys: pytest.CaptureFixture[str]) -> None:
    for words, says in (
        (["explain-help", "runs/late", "--step", "25"], "unrecognized arguments: --step (STEP goes without --step)"),
        (["explain-help", "late", "3", "--run=runs"], "unrecognized arguments: --run=runs (RUN goes without --run)"),
        (["explain-help", "late", "3", "--hepl"], "unrecognized arguments: --hepl"),
    ):
        assert main(words) == 2
        assert capsys.readouterr().err == f"sa-atp: {says}; see sa-atp explain-help --help\n"


def test_no_word_is_meant_by_one_that_is_like_none(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["xyzzy"], ["plot", "folder", "--xyzzy"], ["doctor", "more"]):
        assert main(words) == 2
        assert "mean" not in capsys.readouterr().err


def test_help_is_there_at_once() -> None:
    """It loads none of the packages that take long to import."""
    check = "import sys; from sa_atp.cli import build_parser; build_parser().format_help(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) & {"numpy", "numba", "grpc", "rich", "msgspec", "matplotlib", "torch"} == set()
