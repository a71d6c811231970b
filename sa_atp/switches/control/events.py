"""The switch's counters of each job, numbered as in p4src/core/admission.p4 (a test compares them)."""

from enum import IntEnum

EVENTS_A_JOB = 32  # cells of `job_events` that belong to one job: its number is bits 5 and up of the index
COUNTER = "job_events"


class Event(IntEnum):
    """Cell of a job's counters (protocol section 8). The first three are refusals."""

    MALFORMED = 0
    FOREIGN = 1
    STALE = 2
    CLAIMED = 3
    ADDED = 4
    COMPLETED = 5
    DUPLICATE = 6
    ANSWERED = 7
    COLLISION = 8
    EVICTED = 9
    HANDED_OVER = 10
    PASSED_UP = 11
    PROBED = 12
    FANNED_OUT = 13
    FINISHED = 14


def cell(job: int, event: Event) -> int:
    """The index of a job's event in the counter `job_events`."""
    return job * EVENTS_A_JOB + event
