"""Process groups as jobs: the name of a group's job, and terms of its ranks when they join."""

import hashlib
import os
from collections.abc import Sequence

from sa_atp.protocol.packets.status_messages import LONGEST_NAME

DIGEST = 16  # hexadecimal digits
GROUP = "process group"  # the term that says which ranks are in a job


def job_name(job: str, group: str) -> str:
    """The name of a group's job, different from those of other groups and of the job itself."""
    name = f"{job}/{group}"
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - DIGEST - 1]} {hashlib.sha256(name.encode()).hexdigest()[:DIGEST]}"


def ranks_of(ranks: Sequence[int]) -> str:
    """Global ranks in the order of the group, as "ranks 0-3, 8"."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return "ranks " + ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def beliefs(ranks: Sequence[int] | None) -> dict[str, str]:
    """Terms about a rank's group and run, as far as it has them. Args: ranks: the group's; None: there is no group."""
    found = {} if ranks is None else {GROUP: ranks_of(ranks)}
    run = os.environ.get("TORCHELASTIC_RUN_ID")  # torchrun's rendezvous, the same for all ranks
    return found if run is None else {**found, "run": run}
