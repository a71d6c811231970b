"""The size of each room: statements and words of code stay within tests/size.toml, which only goes down.

    python tests/test_size.py            prints the sizes beside the budgets
    python tests/test_size.py --lower    writes the sizes of the rooms that have become smaller into tests/size.toml

A statement is a node of Python's syntax tree, without docstrings and imports. A word is a token that is no punctuation,
comment or docstring; an f-string is one, with all that is in it. So denser lines, shorter names and fewer docstrings make
nothing smaller. New code is paid for by code that goes; a raised budget is a change of its own, with its reason.
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUDGETS = ROOT / "tests" / "size.toml"
ROOMS = {
    "protocol": ["sa_atp/protocol"],
    "net": ["sa_atp/net"],
    "switches": ["sa_atp/switches"],
    "steps and train": ["sa_atp/steps", "sa_atp/train"],
    "lab": ["sa_atp/lab"],
    "cli": ["sa_atp/cli"],
    "basics, doctor, top": ["sa_atp/basics", "sa_atp/doctor", "sa_atp/*.py"],
    "tests": ["tests"],
}
"""The Python files of each room; a pattern stands for the files that it matches, a folder for all below it."""

SPACES = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
PUNCTUATION = ",()[]{}:."


def size_of(code: str) -> tuple[int, int]:
    """The statements and the words of a file."""
    nodes = list(ast.walk(ast.parse(code)))
    texts = [
        node
        for node in nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    imports = [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
    lines = {line for text in texts for line in range(text.lineno, (text.end_lineno or text.lineno) + 1)}
    words = 0
    within = 0  # how many f-strings: since Python 3.12 they are tokens of their own
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        name = tokenize.tok_name[token.type]
        within -= name == "FSTRING_END"
        words += not (
            within
            or token.type in SPACES
            or (token.type == tokenize.STRING and token.start[0] in lines)
            or (token.type == tokenize.OP and token.string in PUNCTUATION)
            or name == "FSTRING_START"
        )
        within += name == "FSTRING_START"
    return sum(isinstance(node, ast.stmt) for node in nodes) - len(texts) - len(imports), words


def size_of_room(room: str) -> dict[str, int]:
    files: set[Path] = set()
    for place in ROOMS[room]:
        files |= set((ROOT / place).rglob("*.py") if "*" not in place else ROOT.glob(place))
    sizes = [size_of(path.read_text()) for path in files]
    return {"statements": sum(size[0] for size in sizes), "words": sum(size[1] for size in sizes)}


def size_of_documents() -> dict[str, int]:
    """The lines of all documents but the changelog, which grows."""
    files = {*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")} - {ROOT / "CHANGELOG.md"}
    return {"lines": sum(path.read_text().count("\n") for path in files)}


def sizes() -> dict[str, dict[str, int]]:
    return {**{room: size_of_room(room) for room in ROOMS}, "documents": size_of_documents()}


def budgets() -> dict[str, dict[str, int]]:
    return tomllib.loads(BUDGETS.read_text())


@pytest.mark.parametrize("room", [*ROOMS, "documents"])
def test_no_room_is_larger_than_its_budget(room: str) -> None:
    found = size_of_documents() if room == "documents" else size_of_room(room)
    over = {what: f"{found[what]} of {limit}" for what, limit in budgets()[room].items() if found[what] > limit}
    assert not over, f"{room}: remove what nobody needs, or raise tests/size.toml in a commit that says why"


def test_what_counts() -> None:
    code = '"""Words of\na docstring."""\nimport os\n\n\ndef f(a, b):\n    """Adds."""\n    return a + b  # a comment\n'
    assert size_of(code) == (2, 10)  # the words of imports count
    assert size_of("f = f'{a + b}, {f\"{c}\":>{width}}'\n") == (1, 3)


def lowered(text: str, found: dict[str, dict[str, int]]) -> str:
    """The text of size.toml with the sizes of rooms that are smaller than it says."""
    room = ""
    lines = []
    for line in text.splitlines(keepends=True):
        if match := re.match(r'\["?([^"\]]*)', line):
            room = match[1]
        if match := re.match(r"(\w+) = (\d+)\n", line):
            line = f"{match[1]} = {min(int(match[2]), found[room][match[1]])}\n"
        lines.append(line)
    return "".join(lines)


def test_budgets_are_only_lowered() -> None:
    text = '# why\n["a b"]\nstatements = 10\nwords = 70\n\n[c]\nlines = 5\n'
    found = {"a b": {"statements": 8, "words": 71}, "c": {"lines": 5}}
    assert lowered(text, found) == text.replace("10", "8")


if __name__ == "__main__":
    current = sizes()
    for name, limits in budgets().items():
        print(f"{name:20}", *(f"{current[name][what]:7} of {limit:7} {what}" for what, limit in limits.items()))
    if "--lower" in sys.argv:
        BUDGETS.write_text(lowered(BUDGETS.read_text(), current))
