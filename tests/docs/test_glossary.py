"""The glossary is sorted, and its links and those of all documents to headings and files lead somewhere."""

import re

import pytest

from docs.blocks import FILES, ROOT

GLOSSARY = "docs/glossary.md"
ROWS = re.findall(r"^\| \*(.+)\* \| (.+) \| \[.+\]\((.+)\) \|$", (ROOT / GLOSSARY).read_text(), re.MULTILINE)


def without_blocks(file: str) -> str:
    return re.sub(r"^```.*?^```", "", (ROOT / file).read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(file: str) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(file), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(file: str) -> list[str]:
    """Links of a document to files that do not exist, or to headings that do not."""
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_blocks(file)):
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        target = (ROOT / file).parent / path if path else ROOT / file
        is_document = target.suffix == ".md" and target.is_file()
        if not target.exists() or (is_document and anchor and anchor not in anchors(str(target))):
            found.append(link)
    return found


@pytest.mark.parametrize("file", FILES)
def test_links_lead_somewhere(file: str) -> None:
    assert not broken(file)


def test_every_row_of_the_glossary_is_a_word_a_sentence_and_a_link() -> None:
    table = [line for line in (ROOT / GLOSSARY).read_text().splitlines() if line.startswith("| ")]
    assert len(ROWS) == len(table) - 1, "all but the table's head"
    assert all(meaning.endswith(".") for _, meaning, _ in ROWS)


def test_the_glossary_is_sorted() -> None:
    words = [word.lower() for word, _, _ in ROWS]
    assert words == sorted(set(words))
