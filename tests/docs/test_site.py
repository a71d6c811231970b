"""The documentation as a site: built as scripts/docs does, complete, searchable, and without anything from other hosts."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from helpers import browser

from docs.blocks import FILES, ROOT

pytestmark = pytest.mark.needs("sphinx", "myst_parser", "furo")
LOADS = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "srcset"}


def build(root: Path, out: Path) -> subprocess.CompletedProcess[str]:
    program = ROOT / "scripts" / "lib" / "docs_site.py"
    return subprocess.run(
        [sys.executable, program, root, out], capture_output=True, text=True, timeout=600, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("docs") / "site"
    done = build(ROOT, out)
    warnings = [line for line in done.stderr.splitlines() if not line.endswith(" s so far")]
    assert (done.returncode, warnings) == (0, [])  # strict: no link leads nowhere
    assert done.stdout.endswith(f" pages: {out}/index.html\n")
    return out


class Loaded(HTMLParser):
    """Collects what a page loads, and what it links to."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag in LOADS and found.get(LOADS[tag]):
            self.loads.append(str(found[LOADS[tag]]))
        if tag == "a" and found.get("href"):
            self.links.append(str(found["href"]))


def test_every_document_is_a_page_that_loads_nothing_from_other_hosts(site: Path) -> None:
    for name in FILES:
        assert (site / name).with_suffix(".html").is_file()
    for page in site.rglob("*.html"):
        found = Loaded()
        found.feed(page.read_text(encoding="utf-8"))
        assert not [name for name in found.loads if re.match(r"(\w+:)?//", name)], page
        for link in found.links:
            path = link.partition("#")[0].partition("?")[0]
            assert "://" in link or not path or (page.parent / path).exists(), (page, link)
    styles = "".join(each.read_text(encoding="utf-8") for each in site.rglob("*.css"))
    assert not re.search(r"url\(['\"]?(https?:)?//|@import", styles)


def test_links_into_the_tree_lead_to_pages_that_show_it(site: Path) -> None:
    assert "topologies/demo.toml.html" in (site / "topologies.html").read_text(encoding="utf-8")
    plan = re.sub("<[^>]*>", "", (site / "topologies" / "demo.toml.html").read_text(encoding="utf-8"))
    first = (ROOT / "topologies" / "demo.toml").read_text().splitlines()[0]
    assert first in plan
    program = re.sub("<[^>]*>", "", (site / "p4src" / "core" / "program.p4.html").read_text(encoding="utf-8"))
    assert "control SwitchDeparser(packet_out packet" in program


@browser.NEEDED
def test_the_search_finds_pages_without_a_server(site: Path, tmp_path: Path) -> None:
    found = browser.dom(site / "search.html", tmp_path, query="q=retransmission")
    assert re.search(r"Search finished, found \d+ pages matching", found)
    assert 'href="docs/protocol.html' in found
    assert "did not match any documents" in browser.dom(site / "search.html", tmp_path, query="q=xyzzyplugh")


@pytest.mark.parametrize(
    ("link", "said"),
    [("docs/nothing.md", "target not found"), ("#nothing", "nothing"), ("missing/", "target not found")],
)
def test_a_link_that_leads_nowhere_is_an_error(link: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(f"# Title\n\nA [link]({link}).\n")
    done = build(tmp_path, tmp_path / "out")
    assert done.returncode == 1
    assert f"{said}" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("[docs] the documents have mistakes, see above")
