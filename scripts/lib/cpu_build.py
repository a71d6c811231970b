"""Finds builds of PyTorch for the CPU, of versions that pyproject.toml and a file of pins allow. Needs nothing but pip.

python cpu_build.py CHECKOUT PINS        prints arguments for pip, a line for each choice, the newest first

PyPI's builds bring several gigabytes of CUDA. A build for the CPU has a version like 2.13.0+cpu. pip's configured index may
have one; if not, PyTorch's own index does.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from installed import pinned, wanted
from pip._vendor.packaging.specifiers import SpecifierSet
from pip._vendor.packaging.version import InvalidVersion, Version

INDEX = "https://download.pytorch.org/whl/cpu"
# The index may be unreachable, and pip would try for minutes.
PATIENCE = ("--timeout", "15", "--retries", "1")


def versions(*options: str) -> list[Version]:
    """All versions that pip finds for this Python and processor."""
    command = [sys.executable, "-m", "pip", "index", "versions", "torch", "--disable-pip-version-check", *options]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    found = []
    for line in done.stdout.splitlines():
        head, _, rest = line.partition(":")
        for text in rest.split(",") if head.strip() == "Available versions" else ():
            try:
                found.append(Version(text.strip()))
            except InvalidVersion:
                continue
    return found


def for_cpu(found: list[Version], allowed: SpecifierSet) -> list[str]:
    """The allowed versions for the CPU, as requirements, the newest first."""
    fitting = [version for version in found if version.local == "cpu" and allowed.contains(version)]
    return [f"torch=={version}" for version in sorted(fitting, reverse=True)]


def choices(allowed: SpecifierSet) -> Iterator[str]:
    own = for_cpu(versions(), allowed)
    yield from own[:2]
    if not own:
        option = f"--extra-index-url {INDEX}"
        yield from (
            f"{requirement} {option}" for requirement in for_cpu(versions(*option.split(), *PATIENCE), allowed)[:2]
        )


def main(root: str, pins: str) -> int:
    allowed = pinned(pins).get("torch", SpecifierSet())
    for requirement in wanted(Path(root)):
        if requirement.name == "torch":
            allowed &= requirement.specifier
    for choice in choices(allowed):
        print(choice, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
