"""What all suites share: hypothesis without clocks and chance, and the compiled switch program."""

import signal

import pytest
from hypothesis import settings

from sa_atp import artefacts
from sa_atp.folders import cache_folder
from sa_atp.softswitch.pipeline import Pipeline

# A test that fails, fails everywhere and every time: examples follow from the test alone, and a busy machine is no error.
settings.register_profile("sa_atp", deadline=None, derandomize=True, print_blob=False)
settings.load_profile("sa_atp")

# A shell starts what runs in its background with Ctrl-C ignored, and children inherit that; some tests press Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


def load_pipeline(lanes: int = 64) -> Pipeline:
    """The aggregation program, compiled once for a machine (see sa_atp.folders)."""
    return Pipeline.from_file(artefacts.program(lanes).json_path, cache=cache_folder())


@pytest.fixture(scope="session")
def pipelines() -> list[Pipeline]:
    """Switches with the aggregation program, 64 lanes: one for a star, three for two levels."""
    return [load_pipeline() for _ in range(3)]


@pytest.fixture(scope="session")
def pipeline(pipelines: list[Pipeline]) -> Pipeline:
    return pipelines[0]
