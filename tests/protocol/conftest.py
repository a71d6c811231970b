"""Simulated clusters, with links and switches as each test says."""

from collections.abc import Callable
from typing import Any

import pytest
from helpers.cluster import Cluster

from sa_atp.lab.simulator.network import LinkSettings
from sa_atp.switches.embedded.pipeline import Pipeline


@pytest.fixture
def make(pipelines: list[Pipeline]) -> Callable[..., Cluster]:
    def made(*, levels: int = 1, loss: float = 0.0, delay_us: int = 20, **options: Any) -> Cluster:
        """Args: options: see Cluster."""
        switches = pipelines[:1] if levels == 1 else pipelines
        return Cluster(switches, links=LinkSettings(loss=loss, delay_us=delay_us), **options)

    return made
