"""ARCHITECTURE.md names what there is: modules, folders, and the classes and methods on the way of a sum."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import sa_atp.net
import sa_atp.protocol

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
DIAGRAM = TEXT.split("```")[1]
P4 = "\n".join(path.read_text() for path in sorted((ROOT / "p4src/core").glob("*.p4")))


def rows(heading: str) -> list[list[str]]:
    """Cells of the table that begins with a heading."""
    table = TEXT[TEXT.index(heading) :].split("\n\n")[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]


def known_classes() -> dict[str, type]:
    found: dict[str, type] = {}
    for package in (sa_atp.net, sa_atp.protocol):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "datapath" not in module.name:  # those are sources that run in a namespace of their own
                loaded = importlib.import_module(module.name)
                found |= {name: kind for name, kind in vars(loaded).items() if isinstance(kind, type)}
    return found


def test_the_way_of_a_sum_names_what_exists() -> None:
    classes = known_classes()
    named = re.findall(r"\b([A-Z][A-Za-z]+)\.([a-z_]+)\b", DIAGRAM)
    assert len(named) > 12
    for kind, member in named:
        assert kind in classes, f"there is no class {kind}"
        there = hasattr(classes[kind], member) or member in getattr(classes[kind], "__annotations__", {})
        assert there, f"{kind} has no {member}"
    for kind in re.findall(r"\b(?:Operation|ContributionGroup|Window|SendPacer|Stamp|Burst|OperationDone)\b", DIAGRAM):
        assert kind in classes
    for control in ("Admission", "SlotState", "Lanes", "Verdict"):
        assert control in DIAGRAM
        assert f"control {control}(" in P4


@pytest.mark.parametrize("row", rows("| room | what it does |"), ids=lambda row: row[0])
def test_modules_to_begin_with_exist(row: list[str]) -> None:
    for part in re.findall(r"`([\w./]+)`", row[0]):
        assert (ROOT / "sa_atp" / part).exists(), part
        for module in re.findall(r"`([\w./]+)`", row[2]):
            there = ROOT / "sa_atp" / part / module
            assert there.is_dir() or there.with_suffix(".py").is_file(), f"{part}{module}"


def test_folders_exist() -> None:
    for row in rows("| folder | what is in it |"):
        for path in re.findall(r"`([\w./]+)`", row[0]):
            assert (ROOT / path).exists(), path
