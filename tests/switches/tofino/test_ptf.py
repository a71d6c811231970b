"""The golden vectors as PTF tests: complete, the same bytes, and carried out here on the embedded target.

Neither ptf nor a Tofino is at hand: a small ptf of our own moves the packets, the tables are filled over P4Runtime at the
server of these tests, which checks every entry against the program, and in the embedded target beside it.
"""

import importlib.util
import sys
import types
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import load_pipeline
from golden import ptf as exporter
from golden.scenarios import EACH, TOFINO_LANES

from sa_atp.switches.control.client import P4RuntimeClient
from sa_atp.switches.control.writer import LocalWriter
from sa_atp.switches.embedded.pipeline import Pipeline

from .conftest import Serve

LOOP_PORT = 68
START_US, PACKET_US, WAIT_US = 1_000_000, 1, 100_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("vectors")
    for name, text in exporter.files("tofino", TOFINO_LANES, LOOP_PORT).items():
        (made / name).write_text(text)
    return made


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return load_pipeline(TOFINO_LANES)


class Wires:
    """The part of ptf that tests use, for a pipeline in this process."""

    def __init__(self, pipeline: Pipeline, parameters: dict[str, str]) -> None:
        self.pipeline, self.parameters = pipeline, parameters
        self.now_us = START_US
        self.waiting: list[tuple[int, bytes]] = []
        self.sent = self.verified = 0

    def modules(self) -> dict[str, types.ModuleType]:
        base, utils, package = (types.ModuleType(name) for name in ("ptf.base_tests", "ptf.testutils", "ptf"))
        base.BaseTest = unittest.TestCase  # type: ignore[attr-defined]
        utils.test_params_get = lambda: self.parameters  # type: ignore[attr-defined]
        utils.send_packet = self.send_packet  # type: ignore[attr-defined]
        utils.verify_packet = self.verify_packet  # type: ignore[attr-defined]
        utils.verify_no_other_packets = self.verify_no_other_packets  # type: ignore[attr-defined]
        package.testutils, package.base_tests, package.dataplane_instance = utils, base, self  # type: ignore[attr-defined]
        return {"ptf": package, "ptf.testutils": utils, "ptf.base_tests": base}

    def flush(self) -> None:
        self.waiting = []

    def send_packet(self, test: Any, port: int, data: bytes) -> None:
        self.sent += 1
        self.now_us += PACKET_US
        # the copy for the recirculation port is what this target does not need
        self.waiting += [out for out in self.pipeline.process_one(data, port, self.now_us) if out[0] != LOOP_PORT]

    def verify_packet(self, test: Any, wanted: bytes, port: int) -> None:
        assert (port, wanted) in self.waiting
        self.waiting.remove((port, wanted))
        self.verified += 1

    def verify_no_other_packets(self, test: Any) -> None:
        assert self.waiting == []

    def sleep(self, seconds: float) -> None:
        self.now_us += WAIT_US


class Tee(P4RuntimeClient):
    """Fills the tables of the server and those of the pipeline; counters are the pipeline's."""

    pipeline: Pipeline

    def push_pipeline(self, *arguments: Any, **named: Any) -> None:
        super().push_pipeline(*arguments, **named)
        self.pipeline.reset()
        self.local = LocalWriter(self.pipeline)

    def write(self, updates: Any) -> None:
        updates = list(updates)
        super().write(updates)
        self.local.write(updates)

    def read(self, *queries: Any) -> Any:
        return self.local.read(*queries)


def imported(name: str, folder: Path) -> types.ModuleType:
    found = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    found.loader.exec_module(module)
    return module


@pytest.fixture
def vectors(
    folder: Path, pipeline: Pipeline, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Any, Wires]]:
    """The module of the runner in the test's own ptf, and its packets."""
    server = serve(kind="stratum", chip="tofino")
    wires = Wires(pipeline, {"grpc": server.address, "device_id": str(server.device_id)})
    for name, module in wires.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    runner = imported("vector", folder)
    monkeypatch.setattr(runner, "P4RuntimeClient", type("OfTest", (Tee,), {"pipeline": pipeline}))
    monkeypatch.setattr(runner.time, "sleep", wires.sleep)
    yield runner, wires
    sys.modules.pop("vector")


def only_class(module: types.ModuleType) -> Any:
    (found,) = [value for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return found


def test_every_vector_has_its_file(folder: Path) -> None:
    assert sorted(p.name for p in folder.iterdir()) == sorted(["vector.py", *(f"test_{name}.py" for name in EACH)])
    assert set(exporter.SKIPPED) <= set(EACH)


@pytest.mark.parametrize("name", EACH)
def test_exported_vectors_pass_on_the_embedded_target(name: str, folder: Path, vectors: tuple[Any, Wires]) -> None:
    _, wires = vectors
    kind = only_class(imported(f"test_{name}", folder))
    assert bool(kind.skip) == (name in exporter.SKIPPED)
    kind.skip = ""  # the embedded target knows a time to live for each job
    result = kind().run()
    if name in exporter.BARE:
        assert "there is no action" in result.errors[0][1], "Tofino's program refuses the entries for bare results"
        return
    assert result.wasSuccessful(), (result.failures + result.errors)[0][1]
    assert wires.sent == sum(what == "packet" for what, _ in kind.steps) > 3
    assert wires.verified == sum(len(step[2]) for what, step in kind.steps if what == "packet")
