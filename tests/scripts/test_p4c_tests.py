"""scripts/p4c-tests on a small checkout: the tests it runs, their outcomes, and the comparison with the list.

The compiler's place is taken by a script that copies committed programs; everything behind it is the real thing.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import ROOT

P4 = ROOT / "tests" / "p4"
COMPILER = """#!/bin/sh
[ "$1" = --version ] && echo "p4c-bm2-ss" && echo "Version 1.2.3 (SHA: 0)" && exit
name=$(basename "$3" .p4)
[ $name != broken ] || {{ echo "broken.p4(1): [--Werror=type-error] error: no such type" >&2; exit 1; }}
cp {p4}/$(echo $name | cut -d- -f1).json "$2"
"""
V1MODEL = "#include <core.p4>\n#include <v1model.p4>\n"


class Place:
    """A copy of the script with a list of its own, and the part of a p4c checkout that the script reads."""

    def __init__(self, root: Path) -> None:
        self.list = root / "tests" / "p4" / "p4c_outcomes.txt"
        self.list.parent.mkdir(parents=True)
        (root / "scripts").mkdir()
        self.script = root / "scripts" / "p4c-tests"
        shutil.copy(ROOT / "scripts" / "p4c-tests", self.script)
        self.samples = root / "p4c" / "testdata" / "p4_16_samples"
        (self.samples / "parser-inline").mkdir(parents=True)
        self.compiler = root / "p4c-bm2-ss"
        self.compiler.write_text(COMPILER.format(p4=P4))
        self.compiler.chmod(0o755)
        self.checkout = root / "p4c"
        self.add("router", (P4 / "router.stf").read_text())

    def add(self, name: str, test: str, program: str = V1MODEL) -> None:
        (self.samples / f"{name}.p4").write_text(program)
        (self.samples / f"{name}.stf").write_text(test)

    def run(self, *arguments: object, **variables: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, self.script, *map(str, arguments or (self.checkout,))],
            capture_output=True, text=True, timeout=120, check=False,
            env={**os.environ, "P4C_BM2_SS": str(self.compiler), **variables},
        )  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_the_list_is_written_and_then_compared(place: Place) -> None:
    place.add("router-wrong", "packet 1 00\nexpect 1 00\n")
    place.add("router-refused", "\nmirroring_add 1 2\n")
    place.add("broken", "packet 1 00\n")
    place.add("parser-inline/punt", "")
    place.add("other", "packet 1 00\n", program="#include <psa.p4>\n")
    (place.samples / "untested.p4").write_text(V1MODEL)

    done = place.run(place.checkout, "--update")
    assert (done.returncode, done.stderr.strip()) == (0, "")
    assert "5 tests: 2 pass, 1 refused, 1 wrong, 1 uncompiled" in done.stdout
    text = place.list.read_text()
    assert [line for line in text.splitlines() if line and not line.startswith("#")] == [
        "broken uncompiled  no such type",
        "parser-inline/punt pass",
        "router pass",
        "router-refused refused  2: mirroring_add: mirroring",
        "router-wrong wrong  line 2: port 1: 0 packets came out, expected 1; this one is missing",
    ]
    assert "# Compiled by p4c-bm2-ss 1.2.3." in text

    done = place.run()
    assert (done.returncode, done.stderr.strip()) == (0, "")  # a test that is listed as wrong is no news


def test_worse_outcomes_than_listed_fail(place: Place) -> None:
    place.list.write_text("router pass\nrouter-more refused  something\ngone pass\n")
    place.add("router-more", "packet 1 00\nno_packet\n")
    done = place.run()
    assert done.returncode == 0
    assert "changed: router-more: pass, refused before" in done.stdout
    assert "in the list, but not in this checkout: gone" in done.stdout

    place.add("router", "mirroring_add 1 2\n")
    done = place.run()
    assert done.returncode == 1
    assert "WORSE: router: refused, pass before (1: mirroring_add: mirroring)" in done.stdout

    place.add("router", (P4 / "router.stf").read_text())
    place.add("router-new", "packet 1 00\nexpect 1 00\n")
    done = place.run(place.checkout, "--only", "new")
    assert done.returncode == 1
    assert "WORSE: router-new: wrong, not in the list (" in done.stdout
    assert "1 tests" in done.stdout


def test_missing_parts_and_wrong_arguments(place: Place, tmp_path: Path) -> None:
    done = place.run(P4C_BM2_SS="", PATH="/nowhere")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("p4c-bm2-ss is not on this machine: ")
    for arguments, said in (
        ((tmp_path,), f"{tmp_path} is not a p4c checkout"),
        ((place.checkout, "--only", "nothing"), "no v1model program with a packet test has 'nothing' in its name"),
        ((place.checkout, "--only", "x", "--update"), "--update writes the whole list"),
        ((place.checkout, "--jobs", "0"), "--jobs 0: expected 1 or more"),
    ):
        done = place.run(*arguments)
        assert done.returncode == 2
        assert said in done.stderr.splitlines()[-1]
