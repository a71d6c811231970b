"""The ranks are started once for all tests of this folder."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: scripts/test sets it up")

# no package, or it would hide PyTorch: modules here are found by their own names
sys.path.insert(0, str(Path(__file__).parent))

from rank_pool import Ranks

from sa_atp.lab.runs.processes import Group


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with Group() as group:
        ranks = Ranks(group, tmp_path_factory.mktemp("ranks"))
        try:
            yield ranks
        finally:
            ranks.end()
