"""Builds the documentation site from the Markdown files of the tree, with Sphinx, MyST and Furo.

    docs_site.py CHECKOUT OUT

Sphinx reads a copy of the documents, under their own paths, with a page for each file of the tree that they link to, which
shows its text. A folder is a page with the list of its files, and they are pages. So a link leads where it leads in
the tree, without being rewritten, and the build fails where it leads nowhere. No page loads anything from another host.
"""

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx.application import Sphinx
from sphinx.errors import SphinxError

from sa_atp.basics.waiting import waiting

LINK = re.compile(r"\]\(([^)\s#]+)")
NEW_LINE = "\n"
LONGEST = 30000  # bytes of a file that is shown
CONTENTS = {
    "Begin": ["docs/first-hour", "docs/coming-from", "docs/glossary"],
    "Use": [
        "docs/cli", "docs/python", "docs/pytorch", "docs/watching", "docs/reference", "docs/policies", "docs/own-program",
    ],
    "Results": ["docs/artifact", "docs/reproduce", "docs/map", "docs/help-table", "docs/help-rules", "docs/recovery-rules"],
    "How it works": [
        "ARCHITECTURE", "docs/one-packet", "docs/protocol", "docs/deviations", "docs/embedded-target", "docs/simulator",
        "docs/flow-model", "docs/tofino", "docs/log",
    ],
    "Work on it": ["CONTRIBUTING", "CHANGELOG"],
}  # fmt: skip
SETTINGS: dict[str, Any] = {
    "project": "SA-ATP",
    "html_title": "SA-ATP",
    "root_doc": "README",
    "extensions": ["myst_parser"],
    "myst_heading_anchors": 4,  # of GitHub's names
    "html_theme": "furo",
    "html_copy_source": False,
    "html_show_sourcelink": False,
    "html_show_copyright": False,
    "show_warning_types": True,
    "suppress_warnings": [
        "misc.highlighting_failure",
        "myst.header",
    ],  # P4 is shown as C; policies.md leaves out a level
}


def build(root: Path, out: Path) -> int:
    """Builds the site. Returns: the number of its pages. Raises: SphinxError: a link leads nowhere, or another warning."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "source")
        write_source(root, source)
        if (out / "objects.inv").is_file():  # of an earlier build
            shutil.rmtree(out)
        app = Sphinx(source, None, out, Path(scratch, "trees"), "html", SETTINGS, status=None, warningiserror=True)
        app.build()
    if app.statuscode:
        raise SphinxError(f"the documents have mistakes, see above; {out} has what could be built")
    (out / "index.html").write_text('<!DOCTYPE html><meta http-equiv=refresh content="0; url=README.html">\n')
    return len(app.env.all_docs)


def write_source(root: Path, source: Path) -> None:
    """Writes the documents, and pages for what they link to."""
    documents = [*sorted(root.glob("*.md")), *sorted((root / "docs").glob("*.md"))]
    for path in documents:
        text = path.read_text(encoding="utf-8")
        _write(source / path.relative_to(root), text + (_contents() if path.name == "README.md" else ""))
    for path in sorted(set(_targets(documents, root))):
        name = path.relative_to(root)
        if path.suffix == ".png":
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, source / name)
        elif _is_shown(path):
            _write(source / f"{name}.md", f"---\norphan: true\n---\n# {name}\n\n{_shown(path)}\n")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _contents() -> str:
    """The tree of pages that Furo shows beside each."""
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{NEW_LINE.join(names)}\n```\n"
        for caption, names in CONTENTS.items()
    )


def _targets(documents: list[Path], root: Path) -> Iterator[Path]:
    """The files and folders that documents link to, apart from documents, and all that is in such a folder."""
    for document in documents:
        for link in LINK.findall(document.read_text(encoding="utf-8")):
            path = Path(os.path.normpath(document.parent / unquote(link)))
            if "://" in link or path in documents or not path.exists() or not path.is_relative_to(root):
                continue
            yield path
            if path.is_dir():
                yield from (each for each in path.rglob("*") if "__pycache__" not in each.parts)


def _is_shown(path: Path) -> bool:
    """Whether a file is text of a bearable length; a folder always is."""
    if path.is_dir():
        return True
    if path.stat().st_size > LONGEST:
        return False
    try:
        return "\0" not in path.read_text(encoding="utf-8")
    except ValueError:
        return False


def _shown(path: Path) -> str:
    if path.is_dir():
        entries = [each for each in sorted(path.iterdir()) if each.name != "__pycache__"]
        return "\n".join(f"- [{e.name}]({path.name}/{e.name})" if _is_shown(e) else f"- {e.name}" for e in entries)
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return _fenced(text, path.name)
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
    return "\n\n".join(said if kind == "markdown" else _fenced(said, "cell.py") for kind, said in cells)


def _fenced(text: str, name: str) -> str:
    try:
        language = get_lexer_for_filename(name).aliases[0]
    except ClassNotFound:
        language = {".p4": "c"}.get(Path(name).suffix, "text")
    fence = "`" * (3 + max((len(run) for run in re.findall("`{3,}", text)), default=0))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


if __name__ == "__main__":
    try:
        with waiting("building the site", "[docs]"):
            pages = build(Path(sys.argv[1]), Path(sys.argv[2]))
    except (SphinxError, OSError) as error:
        sys.exit(f"[docs] {error}")
    print(f"{pages} pages: {Path(sys.argv[2]).resolve() / 'index.html'}")
