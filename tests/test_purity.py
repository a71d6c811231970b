"""What imports what, read from the sources: pure packages stay pure, dependencies go one way and never in a circle."""

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "sa_atp"

# From the bottom up: a part imports from its own level and from those before it.
LEVELS = (
    ("basics",),
    ("protocol",),
    ("protocol/packets",),
    ("protocol/log",),
    ("protocol/numbers",),
    ("protocol/job", "protocol/batches", "protocol/help"),
    ("protocol/rank", "protocol/server"),
    ("switches",),
    ("switches/p4runtime",),
    ("switches/embedded",),
    ("switches/control",),
    ("net",),
    ("steps",),
    ("train", "ddp"),
    ("lab",),
    ("lab/peers",),
    ("lab/simulator",),
    ("lab/flow",),
    ("lab/parameters/rules",),
    ("lab/policies",),
    ("lab/parameters/policies",),
    ("lab/plans",),
    ("lab/runs",),
    ("lab/packet_tests", "lab/parameters"),
    ("lab/backends",),
    ("lab/report",),
    ("lab/bench", "lab/reproduce", "lab/agreement", "lab/soak", "lab/experiments"),
    ("lab/maps",),
    ("experiment", "mininet"),
    ("doctor",),
    ("cli", "__main__"),
)
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}

PURE = ("protocol", "lab/parameters/rules")
# Time and chance are arguments there, and nothing happens but what the caller does.
IMPURE = {
    "asyncio", "concurrent", "datetime", "multiprocessing", "os", "pathlib", "queue", "random", "secrets", "select",
    "selectors", "signal", "socket", "socketserver", "ssl", "subprocess", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
PURE_MAY_IMPORT = {"msgspec", "numpy", "sa_atp"}  # and what the standard library has besides the impure


def sources(*parts: str) -> list[Path]:
    return sorted(path for part in parts for path in (PACKAGE / part).rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Full names of what a file imports, wherever in the file, and the line."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE.parent))


@pytest.mark.parametrize("path", sources(*PURE), ids=name_of)
def test_pure_packages_import_nothing_impure(path: Path) -> None:
    for name, line in imports(path):
        top = name.partition(".")[0]
        where = f"{name_of(path)}:{line} imports {name}"
        assert top not in IMPURE, where
        assert top in sys.stdlib_module_names or top in PURE_MAY_IMPORT, where


@pytest.mark.parametrize("path", sources(*PURE), ids=name_of)
def test_pure_packages_use_no_global_generator(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        is_random = isinstance(node, ast.Attribute) and node.attr == "random"
        assert not is_random, f"{name_of(path)}:{getattr(node, 'lineno', 0)} uses a random generator"


def room(path: Path) -> str:
    """The room of LEVELS in which a file is: the innermost one."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    inside = ["/".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return next((name for name in inside if name in LEVEL), "")


def test_every_file_is_in_a_room() -> None:
    files = [path for path in sources(".") if path != PACKAGE / "__init__.py"]
    assert [name_of(path) for path in files if not room(path)] == [], "say in LEVELS where the new room stands"


def test_no_folder_is_crowded() -> None:
    """A reader looks at one folder at a time."""
    for folder in {path.parent for path in sources(".")}:
        assert len(list(folder.glob("*.py"))) <= 17, f"{name_of(folder)} is two rooms"
    assert len([place for place in PACKAGE.iterdir() if list(place.glob("*.py"))]) <= 9


@pytest.mark.parametrize("path", sources("."), ids=name_of)
def test_imports_go_one_way(path: Path) -> None:
    if path == PACKAGE / "__init__.py":
        return  # what users import: it loads the rest when it is asked for
    for file, line in files_imported(path).items():
        part, other = room(path), room(file)
        assert LEVEL[other] <= LEVEL[part], f"{name_of(path)}:{line}: {part} imports {other}, which stands above it"


def files_imported(path: Path) -> dict[Path, int]:
    """Files of the package that a file names, wherever in it, and the line; packages that Python loads on the way there do
    not count.
    """
    found = {}
    for name, line in imports(path):
        # the last part may be a module, or something in one
        for parts in (name.split("."), name.split(".")[:-1]):
            base = PACKAGE.parent.joinpath(*parts)
            file = next((f for f in (base.with_suffix(".py"), base / "__init__.py") if parts and f.is_file()), None)
            if file is not None:
                found[file] = line
                break
    return {file: line for file, line in found.items() if file not in (path, PACKAGE / "__init__.py")}


def test_files_import_each_other_in_no_circle() -> None:
    """An import within a function counts, too: it makes a circle run, but not easier to read."""
    try:
        TopologicalSorter({path: files_imported(path) for path in sources(".")}).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(name_of(path) for path in reversed(error.args[1])))


def test_connections_and_switch_meet_only_through_packets() -> None:
    for path in sources("switches/embedded"):
        for name, line in imports(path):
            may = not name.startswith("sa_atp.protocol.") or name.startswith("sa_atp.protocol.packets.")
            assert may, f"{name_of(path)}:{line}"


def test_importing_the_package_loads_nothing_heavy() -> None:
    """Command-line tools start quickly because parts are imported where they are used."""
    heavy = {"numba", "grpc", "torch", "matplotlib", "scapy", "pandas"}
    for path in [PACKAGE / "__init__.py", *sources("cli")]:
        for node in ast.parse(path.read_text()).body:
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            assert not {n.partition(".")[0] for n in names} & heavy, f"{name_of(path)}:{node.lineno}"
