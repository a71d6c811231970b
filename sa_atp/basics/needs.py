"""Requirements of the project: every program that it calls, and optional Python packages.

`doctor`, the tests (`@pytest.mark.needs`) and the errors of commands read them here; tests/test_needs.py compares them
with the programs that the sources call, and with the packages that scripts/lib/setup.sh installs.
"""

import importlib.util
import os
import shlex
import shutil
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from sa_atp.basics.errors import MissingPartError

# --- programs
# -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    name: str
    use: str
    """The purpose for which it is called."""
    package: str = ""
    """Debian's package; "": Debian has none."""
    source: str = ""
    """How to get it, if Debian has no package."""
    variable: str = ""
    """Environment variable with the path of the program, or of its folder."""
    version: tuple[str, ...] = ("--version",)
    """Arguments with which it prints its version and ends with status 0; (): there are none."""
    essential: bool = False
    """Whether every Debian has it."""

    @property
    def how(self) -> str:
        """A sentence that says how to install it."""
        return self.source or f"apt-get install {self.package}"


_P4C = "the p4lang packages (https://github.com/p4lang/p4c) or images (docker: p4lang/p4c) have it"
_BMV2 = (
    "install the package p4lang-bmv2 (https://github.com/p4lang) or build behavioral-model with --with-pi and "
    "--with-thrift, and put it on PATH or name its folder in $SA_ATP_BMV2"
)
_TOFINO = "build p4c with ENABLE_TOFINO (docs/tofino.md)"
_MODEL = "build the model's simple_test_harness, and name its folder in $SA_ATP_TOFINO_MODEL (docs/tofino.md)"


def _essential(package: str, *names: str) -> list[Program]:
    return [Program(name=name, use="scripts and tests", package=package, essential=True) for name in names]


PROGRAMS = {
    each.name: each
    for each in [
        Program(name="ip", use="interfaces of Mininet's nodes, and veth pairs", package="iproute2", version=("-V",)),
        Program(name="tc", use="the rates and queues of emulated links", package="iproute2", version=("-V",)),
        Program(name="mnexec", use="processes in Mininet's nodes", package="mininet", version=("-v",)),
        Program(name="ifconfig", use="addresses in Mininet, which calls it", package="net-tools"),
        Program(name="iperf3", use="background traffic in Mininet", package="iperf3"),
        Program(name="simple_switch_grpc", use="BMv2", source=_BMV2, variable="SA_ATP_BMV2"),
        Program(name="simple_switch_CLI", use="the tables of BMv2 in packet tests", source=_BMV2, variable="SA_ATP_BMV2",
                version=("--help",)),
        Program(name="p4c-bm2-ss", use="scripts/compile, scripts/p4c-tests", source=_P4C, variable="P4C_BM2_SS"),
        Program(name="p4c-barefoot", use="scripts/tofino", source=_TOFINO, variable="P4C_BAREFOOT"),
        Program(name="bfas", use="scripts/tofino (the assembler)", source=_TOFINO, variable="BFAS", version=()),
        Program(name="tofino_test_harness", use="the model of Tofino 1", source=_MODEL, variable="SA_ATP_TOFINO_MODEL",
                version=()),
        Program(name="jbay_test_harness", use="the model of Tofino 2", source=_MODEL, variable="SA_ATP_TOFINO_MODEL",
                version=()),
        Program(name="git", use="the commit in a run's manifest", package="git"),
        Program(name="debootstrap", use="scripts/test --debian", package="debootstrap"),
        Program(name="shellcheck", use="a test of the scripts", package="shellcheck"),
        Program(name="chromium", use="tests of pages in a browser", package="chromium"),
        Program(name="zsh", use="a test of its completion", package="zsh"),
        Program(name="fish", use="a test of its completion", package="fish"),
        Program(name="docker", use="docker-compose.yml",
                source="apt-get install docker-ce docker-compose-plugin, of Docker's repository"),
        *_essential("bash", "bash"),
        *_essential("dash", "sh"),
        *_essential("coreutils", "cat", "chmod", "chown", "cp", "cut", "date", "dirname", "env", "id", "ln", "ls", "mkdir",
                    "mktemp", "nproc", "mv", "realpath", "rm", "sha256sum", "sleep", "stat", "true", "uname"),
        *_essential("util-linux", "flock", "pivot_root", "setpriv", "unshare"),
        *_essential("mount", "mount", "umount"),
        *_essential("findutils", "find"),
        *_essential("grep", "grep"),
        *_essential("sed", "sed"),
        *_essential("tar", "tar"),
        *_essential("apt", "apt-get"),
        *_essential("dpkg", "dpkg", "dpkg-query"),
    ]
}  # fmt: skip


def find(name: str) -> Path | None:
    """Finds a program by its variable, or on PATH; None: it is not there. Raises: KeyError: it is not declared."""
    program = PROGRAMS[name]
    said = os.environ.get(program.variable) if program.variable else None
    if said:
        for place in (Path(said), Path(said) / name, Path(said) / "bin" / name):
            if place.is_file() and os.access(place, os.X_OK):
                return place
    found = shutil.which(name)
    return Path(found) if found else None


def require(what: str, *names: str) -> None:
    """Checks that programs are there. Raises: MissingPartError: one line for all that are missing.

    Args: what: beginning of the message, such as "bench needs".
    """
    missing = [PROGRAMS[name] for name in names if find(name) is None]
    packages = sorted({program.package for program in missing if not program.source})
    ways = [f"apt-get install {' '.join(packages)}"] if packages else []
    ways += dict.fromkeys(program.source for program in missing if program.source)
    if missing:
        raise MissingPartError(f"{what} {', '.join(program.name for program in missing)}: {'; '.join(ways)}")


# --- Python packages
# ------------------------------------------------------------------------------------------------------

IMAGE = "SA_ATP_IMAGE"  # variable with the name of the container image that this runs in
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
# by what is imported: the distribution, and the extra of pyproject.toml that it belongs to
OPTIONAL = {
    "torch": ("torch", "torch"),
    "sklearn": ("scikit-learn", "torch"),
    "matplotlib": ("matplotlib", "report"),
    "jinja2": ("jinja2", "report"),
    "mininet": ("mininet", "mininet"),
    "distributed": ("distributed", "cluster"),
    "p4runtime_sh": ("p4runtime-shell", "shell"),
    "pandas": ("pandas", "notebook"),
    "prometheus_client": ("prometheus-client", "metrics"),
    "pyarrow": ("pyarrow", "traces"),
    "lightning": ("lightning", "recipes"),
    "accelerate": ("accelerate", "recipes"),
    "transformers": ("transformers", "recipes"),
    "sphinx": ("sphinx", "docs"),
    "myst_parser": ("myst-parser", "docs"),
    "furo": ("furo", "docs"),
}
# Distributions that need an environment of their own: they pin old versions of packages that others need in newer ones.
APART = ("p4runtime-shell",)
_ROOT = Path(__file__).resolve().parents[2]


def checkout() -> Path | None:
    """The checkout that contains this package; None: it was installed from a wheel."""
    return _ROOT if (_ROOT / "pyproject.toml").is_file() and (_ROOT / "scripts" / "demo").is_file() else None


def require_modules(what: str, *modules: str) -> None:
    """Checks that modules of OPTIONAL are installed. Args: what: see require. Raises: MissingPartError."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        names = [OPTIONAL[module][0] for module in missing]
        verb = "is" if len(names) == 1 else "are"
        raise MissingPartError(f"{what} {' and '.join(names)}, which {verb} not installed: {how_to_install(*names)}")


def how_to_install(*distributions: str) -> str:
    """The command that installs missing dependencies: for a checkout, a wheel, a tool of pipx or uv, or an image."""
    if set(distributions) <= set(APART):
        [name] = distributions
        made = shlex.join([sys.executable, "-m", "venv", name])
        filled = shlex.join([f"{name}/bin/pip", "install", _requirement(name)])
        return f"in an environment of its own: {made} && {filled}"
    extras = {name: extra for name, extra in OPTIONAL.values() if name in distributions}
    root = checkout()
    words = installer()
    if root is None:
        words += [_requirement(name) for name in distributions]
    else:
        wanted = ",".join(sorted(set(extras.values())))
        words += ["--editable", f"{root}[{wanted}]" if wanted else str(root)]
    if "torch" in extras.values() and (root is not None or "torch" in distributions):
        # it has builds without CUDA
        words += (
            [f"--pip-args=--extra-index-url {TORCH_INDEX}"]
            if words[0] == "pipx"
            else ["--extra-index-url", TORCH_INDEX]
        )
    image = os.environ.get(IMAGE)
    if image and not os.access(sys.prefix, os.W_OK):
        lines = rf"FROM {image}\nUSER root\nRUN {shlex.join(words)}\nUSER sa-atp\n"  # all in one line
        return f"on the machine of the containers: printf %b {shlex.quote(lines)} | docker build -t {image} -"
    if root is None:
        return shlex.join(words)
    options = ["--mininet"] if "mininet" in extras.values() else []
    script = [str(root / "scripts" / "demo"), *options]
    if "docs" in extras.values():
        script = [str(root / "scripts" / "docs")]
    if "recipes" in extras.values():
        script = [str(root / "scripts" / "test"), "--recipes"]
    if {"cluster", "shell", "metrics", "traces"} & set(extras.values()):  # of the scripts only the tests install these
        return shlex.join(words)
    return f"{shlex.join(words)}; or {shlex.join(script)}, which sets up an environment that has it"


def installer() -> list[str]:
    """The beginning of a command that installs packages into this environment, whichever tool has made it."""
    prefix = Path(sys.prefix)
    if (prefix / "pipx_metadata.json").is_file():
        return ["pipx", "inject", prefix.name]
    if (prefix / "uv-receipt.toml").is_file() or not any(metadata.distributions(name="pip")):
        return ["uv", "pip", "install", "--python", sys.executable]
    return [sys.executable, "-m", "pip", "install"]


def at_odds(distribution: str) -> tuple[str, str] | None:
    """Checks an installed distribution's version, and those of its own dependencies.

    Returns: the conflict in words, and the command that mends it; None: there is none, or it cannot be determined
    (versions cannot be compared here, or the distribution is not installed).
    """
    try:
        from packaging.requirements import InvalidRequirement, Requirement
    except ImportError:  # wherever pip is, it has a copy
        try:
            from pip._vendor.packaging.requirements import (  # type: ignore[assignment]
                InvalidRequirement,
                Requirement,
            )
        except ImportError:
            return None
    try:
        version = metadata.version(distribution)
        lines = [_requirement(distribution), *(metadata.requires(distribution) or ())]
    except metadata.PackageNotFoundError:
        return None
    for line in lines:
        try:
            wanted = Requirement(line)
            there = metadata.version(wanted.name)
        except (InvalidRequirement, metadata.PackageNotFoundError):
            continue
        if (wanted.marker is not None and not wanted.marker.evaluate({"extra": ""})) or wanted.specifier.contains(
            there, prereleases=True
        ):
            continue
        asked = f"{wanted.name}{wanted.specifier}"
        if line is lines[0]:
            return f"{there}, where sa_atp takes {asked}", how_to_install(distribution)
        said = f"{distribution} {version} asks for {asked}, and {wanted.name} is {there}"
        if distribution in APART:
            return said, how_to_install(distribution)
        return said, shlex.join([*installer(), _requirement(distribution), asked])
    return None


def _requirement(distribution: str) -> str:
    """The project's requirement for a distribution, with its versions."""
    for line in _own_requirements():
        wanted = line.partition(";")[0].strip()
        name = wanted[: next((i for i, c in enumerate(wanted) if not (c.isalnum() or c in "-_.")), len(wanted))]
        if name.lower().replace("_", "-") == distribution:
            return wanted
    return distribution


def _own_requirements() -> Sequence[str]:
    """The project's requirements, from pyproject.toml, or without a checkout from the installed metadata."""
    root = checkout()
    if root is not None:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return [
            *project["dependencies"],
            *(line for extra in project["optional-dependencies"].values() for line in extra),
        ]
    try:
        return metadata.requires("sa_atp") or ()
    except metadata.PackageNotFoundError:
        return ()
