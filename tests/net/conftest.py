"""The processes that tests of collectives share."""

from collections.abc import Iterator

import pytest
from helpers.ranks import running_server


@pytest.fixture(scope="module", params=[True, False], ids=["shared memory", "UDP"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a parameter server, whose switch shares memory with ranks or does not."""
    with running_server(tmp_path_factory.mktemp("logs"), shares=request.param) as address:
        yield address
