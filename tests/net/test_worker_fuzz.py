"""A short run of the fuzz (worker_fuzz.py): it reaches every outcome of a datagram, and finds inserted faults."""

from collections import Counter

import pytest

from sa_atp.net.loop import compiled

from .scripted_calls import FAULTS_KNOWN, Built, build
from .worker_fuzz import ENDS, fuzz

DATAGRAMS = 100_000
RARE = "a question more than there are rows for"  # found, but after hundreds of thousands: see worker_fuzz.py's --fault
MOST_DATAGRAMS = 1_000_000  # before a fault counts as not found


def of_the_package() -> tuple[object, ...]:
    return compiled.worker_kernels(), compiled.socket_kernels(), compiled.steady_loop()


@pytest.fixture(scope="module")
def before() -> tuple[object, ...]:
    return of_the_package()


@pytest.fixture(scope="module")
def built(before: tuple[object, ...]) -> Built:
    return build(faults=True)


def test_the_fuzz_leaves_the_packages_functions_unchanged(before: tuple[object, ...], built: Built) -> None:
    assert all(one is other for one, other in zip(before, of_the_package(), strict=True))


def test_nothing_is_read_or_written_outside_of_the_buffers(built: Built) -> None:
    seen: Counter[str] = Counter()
    with built.fault(None):
        fuzz(built, 2 * DATAGRAMS, 1, seen)
    assert [end for end in ENDS if not seen[end]] == []


@pytest.mark.parametrize("name", [name for name in FAULTS_KNOWN if name != RARE])
def test_a_comparison_that_is_off_by_one_is_found(built: Built, name: str) -> None:
    with built.fault(name), pytest.raises((IndexError, AssertionError)):
        fuzz(built, MOST_DATAGRAMS, 1, Counter())
