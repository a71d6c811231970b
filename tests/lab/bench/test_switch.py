"""`sa-atp bench switch`: its traffic, and each of its measurements with few packets."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.needs import BMV2, VETH

from sa_atp.cli import main
from sa_atp.lab.bench.switch import io as switch_io
from sa_atp.lab.bench.switch import memory as switch_memory
from sa_atp.lab.bench.switch import switch
from sa_atp.lab.bench.switch import traffic as switch_traffic
from sa_atp.lab.bench.switch.request import SwitchRequest
from sa_atp.lab.bench.switch.traffic import Contributions, Traffic, WorkersStall
from sa_atp.protocol.packets.frames import HEADERS_BYTES, checksum
from sa_atp.protocol.packets.header import HEADER
from sa_atp.switches.control import jobs
from sa_atp.switches.control.jobspec import JobSpec
from sa_atp.switches.control.writer import LocalWriter
from sa_atp.switches.embedded.pipeline import Pipeline

LANES = 64
BUILD = LANES, 64  # lanes and contributions


class MemoryLink:
    """The switch in this process. Args: change: alters what worker 0 receives, by the number of the call."""

    def __init__(self, pipeline: Pipeline, spec: JobSpec, change: Callable[[int, np.ndarray], np.ndarray]) -> None:
        pipeline.reset()
        jobs.install(LocalWriter(pipeline), spec)
        self.pipeline = pipeline
        self.spec = spec
        self.change = change
        self.arrived: list[np.ndarray] = []
        self.calls = 0
        self.most_under_way = 0

    def send(self, rank: int, contributions: Contributions, fragments: np.ndarray) -> None:
        frames = contributions.frames(fragments)
        self.most_under_way = max(self.most_under_way, len(frames))
        port = self.spec.members[rank].switch_port
        out = self.pipeline.process(frames, np.full(len(frames), frames.shape[1]), np.full(len(frames), port), 0)
        mine = out.ports == self.spec.members[0].switch_port
        self.arrived.append(out.data[mine, HEADERS_BYTES : frames.shape[1]].copy())

    def run(self, senders: object, results: object, window: int, burst: int) -> int:
        return 0

    def receive(self, longest_s: float) -> list[np.ndarray]:
        self.calls += 1
        arrived, self.arrived = [each for each in self.arrived if len(each)], []
        changed = [self.change(self.calls, each) for each in arrived]
        return [each for each in changed if len(each)]


def job() -> JobSpec:
    return switch_traffic.job(*switch_traffic.hosts())


def test_contributions_are_frames_of_their_worker() -> None:
    members, server = switch_traffic.hosts()
    frames = Contributions(members[2], server, BUILD, 8).frames(np.array([5, 1029]))
    for frame, seq in zip(frames, (5, 1029), strict=True):
        header = bytearray(frame[14:34])
        found = int.from_bytes(header[10:12], "big")
        header[10:12] = b"\0\0"
        assert found == checksum(bytes(header))
        packet = frame[HEADERS_BYTES:].tobytes()
        fields = np.frombuffer(packet[:20], HEADER)[0]
        assert fields[["seq", "slot", "bits"]].tolist() == (seq, 5, 0b100)
        assert np.array_equal(np.frombuffer(packet[20:], ">i4"), 3 * (np.arange(LANES) + 1))


def test_traffic_without_loss(pipeline: Pipeline) -> None:
    link = MemoryLink(pipeline, job(), lambda _, payloads: payloads)
    traffic = Traffic(link, link.spec, BUILD, lambda: None)
    assert traffic.run(3000, 256) > 0
    assert traffic.run(1, 256) > 0
    assert link.most_under_way <= 256
    counted = pipeline.counter("job_events")[:, 0]
    events = counted[switch_traffic.JOB * 32 : switch_traffic.JOB * 32 + 32]
    assert [int(events[i]) for i in (3, 4, 5, 6, 7, 8)] == [3001, 6002, 3001, 0, 0, 0]  # nothing twice, no collision


def test_traffic_with_losses_goes_on_until_all_sums_are_there(pipeline: Pipeline) -> None:
    silences = []
    link = MemoryLink(
        pipeline, job(), lambda call, payloads: payloads[: (len(payloads) + 1) // 2] if call % 3 else payloads[:0]
    )
    Traffic(link, link.spec, BUILD, lambda: silences.append(1)).run(2000, 512)
    assert silences


def test_wrong_sums_and_silence_are_errors(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(call: int, payloads: np.ndarray) -> np.ndarray:
        payloads[:, -1] ^= call == 2
        return payloads

    link = MemoryLink(pipeline, job(), damaged)
    with pytest.raises(WorkersStall, match=r"\d+ of 1000 sums are wrong"):
        Traffic(link, link.spec, BUILD, lambda: None).run(1000, 256)
    monkeypatch.setattr(switch_traffic, "GIVE_UP_S", 0.0)
    link = MemoryLink(pipeline, job(), lambda _, payloads: payloads[:0])
    with pytest.raises(WorkersStall, match="0 of 1000 sums"):
        Traffic(link, link.spec, BUILD, lambda: None).run(1000, 256)


@pytest.mark.usefixtures("pipeline")  # compiled, and so in the cache
def test_the_pipeline_alone() -> None:
    assert switch.measure_pipeline((256, 512), 5000) > 0
    for rates in (list(switch_memory.passes(BUILD, cores, 5000)) for cores in (1, 2)):
        assert len(rates) == switch_traffic.PASSES
        assert min(rates) > 0


@pytest.mark.usefixtures("pipeline")
@pytest.mark.parametrize(
    ("target", "link", "cores"),
    [
        ("embedded", "udp", 1),
        pytest.param("embedded", "veth", 1, marks=VETH),
        pytest.param("embedded", "veth", 2, marks=VETH),
        pytest.param("bmv2", "veth", 1, marks=[VETH, BMV2]),
    ],
)
def test_through_interfaces(target: str, link: str, cores: int) -> None:
    found = switch_io.measure(SwitchRequest(target=target, link=link, lanes=LANES, packets=4000, cores=cores))
    assert found["pps"] > 0
    assert found["packets"] >= 4
    assert not Path("/sys/class/net/sw1").exists()


@pytest.mark.usefixtures("pipeline")
def test_loading_from_the_cache_in_a_fresh_process() -> None:
    from sa_atp.basics.folders import cache_folder

    assert switch._load_s(BUILD, str(cache_folder())) > 0


def test_without_bmv2_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SA_ATP_BMV2", "")
    assert main(["bench", "switch", "--against", "bmv2"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "SA_ATP_BMV2" in line
