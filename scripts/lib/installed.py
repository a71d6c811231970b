"""Checks that this environment has the packages that pyproject.toml requires; prints those it lacks. Needs nothing but pip.

python installed.py CHECKOUT EXTRA...           the project, its dependencies, and those of the extras
python installed.py --only NAME CHECKOUT        whether any version of NAME that pyproject.toml allows is there
"""

import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name


def wanted(project: dict[str, Any], extras: list[str]) -> Iterator[Requirement]:
    optional = project.get("optional-dependencies", {})
    for line in [*project["dependencies"], *(line for extra in extras for line in optional[extra])]:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate():
            yield requirement


def lacks(requirement: Requirement) -> str | None:
    """Why a requirement is not met; None if it is."""
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return str(requirement)
    fits = requirement.specifier.contains(version, prereleases=True)
    return None if fits else f"{requirement} (it has {version})"


def project_problem(root: Path) -> str | None:
    spec = find_spec("sa_atp")
    if spec is None or spec.origin is None:
        return "sa_atp"
    return None if Path(spec.origin).resolve().parent.parent == root else f"sa_atp of {root} (it has {spec.origin})"


def main(arguments: list[str]) -> int:
    only = arguments[1] if arguments[:1] == ["--only"] else None
    root, *extras = arguments[2:] if only else arguments
    project = tomllib.loads((Path(root) / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if only:
        found = [r for r in wanted(project, [*project["optional-dependencies"]]) if canonicalize_name(r.name) == only]
        problems = [lacks(requirement) for requirement in found]
    else:
        problems = [project_problem(Path(root).resolve()), *map(lacks, wanted(project, extras))]
    missing = [problem for problem in problems if problem]
    print("\n".join(missing))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
