"""`sa-atp bench packet`: every station is measured and documented."""

import pytest
from helpers.committed import DOCS

from sa_atp.basics.errors import UserError
from sa_atp.lab.bench import packet
from sa_atp.lab.bench.stations import STATIONS, Watch

OF_SERVICES = {"switch", "switch in the kernel", "server", "server in the kernel"}


def test_every_station_takes_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packet, "PIPELINE_PACKETS", 1000)
    found = packet.measure(2, 2_000_000, 2, 64, sums_alone=20)
    assert found["sums_wrong"] == 0
    assert list(found["stream_ns"]) == list(packet.WHAT)
    assert set(found["alone_ns"]) == set(STATIONS) == set(packet.WHAT) - OF_SERVICES
    # the kernel's share of other processes is counted in ticks, which may be none
    assert all(ns > 0 for name, ns in found["stream_ns"].items() if name not in OF_SERVICES)
    assert all(ns > 0 for ns in found["alone_ns"].values())
    assert sum(found["alone_ns"].values()) < 20 * found["alone_p50_ns"]


def test_calls_within_calls_count_once() -> None:
    watch = Watch()
    watch.reset()
    fill = watch.timed("fill", lambda: sum(range(10_000)))
    watch.timed("transmit", lambda: fill() + sum(range(1000)))()
    found = watch.found()["wall_ns"]
    assert 0 < found["transmit"] < watch.wall_ns["transmit"]
    assert found["transmit"] + found["fill"] == watch.wall_ns["transmit"]


def test_a_stream_has_a_packet_at_least() -> None:
    with pytest.raises(UserError, match=r"at least one packet, 0\.001024"):
        packet.measure(2, 1000, 1, 256)


def test_the_document_has_every_station() -> None:
    page = (DOCS / "one-packet.md").read_text()
    rows = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")]
    assert [row for row in rows if row in packet.WHAT.values()] == list(packet.WHAT.values())
