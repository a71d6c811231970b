"""Checks that this environment has the packages that pyproject.toml requires; prints those it lacks. Needs nothing but pip.

python installed.py CHECKOUT PINS EXTRA...        the project, its dependencies, and those of the extras; their versions are
                                                  those that PINS, a file for `pip install --constraint`, says
python installed.py CHECKOUT PINS --only NAME     only NAME, a requirement of the project or of any extra
python installed.py CHECKOUT PINS --lowest        instead: prints pins of the lower ends of all ranges in pyproject.toml
"""

import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.specifiers import SpecifierSet
from pip._vendor.packaging.utils import canonicalize_name


def wanted(root: Path, extras: list[str] | None = None) -> Iterator[Requirement]:
    """The requirements of the project, for this Python, and of these extras, or of all."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project.get("optional-dependencies", {})
    chosen = [*optional] if extras is None else extras
    return fitting([*project["dependencies"], *(line for extra in chosen for line in optional[extra])])


def fitting(lines: list[str]) -> Iterator[Requirement]:
    """The requirements that are for this Python and processor."""
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate():
            yield requirement


def pinned(pins: str) -> dict[str, SpecifierSet]:
    """The versions of a file of pins, by name. "" is no file."""
    lines = Path(pins).read_text(encoding="utf-8").splitlines() if pins else []
    found = fitting([line for line in lines if line.strip() and not line.startswith("#")])
    return {canonicalize_name(requirement.name): requirement.specifier for requirement in found}


def lacks(requirement: Requirement, pins: dict[str, SpecifierSet]) -> str | None:
    """Why a requirement is not met; None if it is."""
    name = canonicalize_name(requirement.name)
    allowed = requirement.specifier & pins.get(name, SpecifierSet())
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return f"{requirement.name}{allowed}"
    return None if allowed.contains(version, prereleases=True) else f"{requirement.name}{allowed} (it has {version})"


def lower_end(requirement: Requirement) -> str:
    versions = [part.version for part in requirement.specifier if part.operator in (">=", "==")]
    return f"{requirement.name}=={versions[0]}"


def project_problem(root: Path) -> str | None:
    """Why the environment has not this checkout with the requirements that it says now; None if it has."""
    spec = find_spec("sa_atp")
    if spec is None or spec.origin is None:
        return "sa_atp"
    if Path(spec.origin).resolve().parent.parent != root:
        return f"sa_atp of {root} (it has {spec.origin})"
    recorded = {(each.name, each.specifier) for each in map(Requirement, metadata.requires("sa-atp") or [])}
    said = {(each.name, each.specifier) for each in wanted(root)}
    return None if said <= recorded else "sa_atp with the requirements that it has now"


def main(root: Path, pins: str, arguments: list[str]) -> int:
    if arguments[0] == "--lowest":
        print("\n".join(sorted({lower_end(requirement) for requirement in wanted(root)})))
        return 0
    exact = pinned(pins)
    if arguments[0] == "--only":
        problems = [lacks(found, exact) for found in wanted(root) if canonicalize_name(found.name) == arguments[1]]
    else:
        problems = [*(lacks(found, exact) for found in wanted(root, arguments)), project_problem(root)]
    missing = [problem for problem in problems if problem]
    print("\n".join(missing))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3:]))
