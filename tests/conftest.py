"""What all suites share: hypothesis without clocks and chance, the machine that they run on, the compiled program."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from helpers.needs import lack
from hypothesis import settings

from sa_atp.basics.folders import cache_folder
from sa_atp.lab.backends.mininet import parts
from sa_atp.switches import artefacts
from sa_atp.switches.embedded.pipeline import Pipeline

# Tests of these folders and files see nothing of the machine: no process, socket, file or clock (test_needs.py looks). What
# they find, they find everywhere; all others are marked `machine`, and run in every way that scripts/test has.
ANYWHERE = (
    "lab/bench/test_help_drawn.py", "lab/bench/test_help_rows.py", "lab/bench/test_loss.py", "lab/flow", "lab/parameters",
    "lab/runs/test_flows.py", "lab/runs/test_simulated.py", "lab/runs/test_slow_ways_down.py", "lab/simulator",
    "protocol/batches", "protocol/help", "protocol/job", "protocol/numbers", "protocol/rank", "protocol/server", "steps",
)  # fmt: skip

# Where all ways are gone through, a test that the way `fresh` can run runs there alone (mark `fresh`): it is an ordinary
# user's, with the newest libraries. Those that need something that it may lack run here, and these folders' in both:
# libraries differ: with p4runtime-shell, protobuf is old.
IN_BOTH = ("switches/p4runtime", "switches/control", "switches/embedded/p4runtime_server")

# Where several files run at once (scripts/test), those of these folders begin first, because they take longest.
LONG = ("lab/runs", "docs", "scripts", "train")
APART = ("docs/test_blocks.py", "docs/test_commands.py")  # their tests are dealt one by one: some take a minute

# What Mininet comes with: tests that need some of it may be skipped elsewhere, and run once more where it is.
WITH_MININET = {"mininet", *parts.PROGRAMS, *parts.TRAFFIC}

# A test that fails, fails everywhere and every time: examples follow from the test alone, and a busy machine is no error.
settings.register_profile("sa_atp", deadline=None, derandomize=True, print_blob=False)
settings.load_profile("sa_atp")

# On a busy machine a command may be silent for long, and tests compare what it says.
os.environ["SA_ATP_SILENCE_S"] = "inf"

# A shell starts what runs in its background with Ctrl-C ignored, and children inherit that; some tests press Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        path = item.path.relative_to(here)
        if not any(path.is_relative_to(place) for place in ANYWHERE):
            item.add_marker("machine")
            if not any(path.is_relative_to(place) for place in IN_BOTH) and item.get_closest_marker("needs") is None:
                item.add_marker("fresh")
        if any("mininet" in mark.args for mark in item.iter_markers("needs")) and "mininet" not in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid} starts a Mininet network: say mininet in its name, see Files")
        if any(WITH_MININET.intersection(mark.args) for mark in item.iter_markers("needs")):
            item.add_marker("mininet")
    if "minutes" not in config.option.markexpr:  # those run where they are asked for
        late = [item for item in items if item.get_closest_marker("minutes")]
        config.hook.pytest_deselected(items=late)
        items[:] = [item for item in items if item not in late]
    if hasattr(config, "workerinput"):  # one of several processes
        items.sort(key=lambda item: not any(item.path.relative_to(here).is_relative_to(place) for place in LONG))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deals files to processes; Mininet networks, whose interfaces have the same names, stand one after another."""
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):  # type: ignore[misc]  # it has no types
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            if "mininet" in nodeid:
                return "mininet"
            return nodeid if file.endswith(APART) else file

    return Files(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        for name in mark.args:
            if reason := lack(name):
                pytest.skip(reason)


def load_pipeline(lanes: int = 64, contributions: int = 64) -> Pipeline:
    """The aggregation program, compiled once for a machine (see sa_atp.basics.folders)."""
    return Pipeline.from_file(artefacts.program(lanes, contributions).json_path, cache=cache_folder())


@pytest.fixture(scope="session")
def pipelines() -> list[Pipeline]:
    """Switches with the aggregation program, 64 lanes: one for a star, three for two levels."""
    return [load_pipeline() for _ in range(3)]


@pytest.fixture(scope="session")
def wide_pipeline() -> Pipeline:
    """The same with 256 lanes."""
    return load_pipeline(256)


@pytest.fixture(scope="session")
def many_bits() -> list[Pipeline]:
    """The same with 256 lanes and bitmaps of 512 bits: one for a star, three for two levels."""
    return [load_pipeline(256, 512) for _ in range(3)]


@pytest.fixture(scope="session")
def pipeline(pipelines: list[Pipeline]) -> Pipeline:
    return pipelines[0]
