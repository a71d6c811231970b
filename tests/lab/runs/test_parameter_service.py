"""The server of parameters over gRPC: permissions, sizes of messages, and numbers of streams."""

import json
import os
import resource
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from sa_atp.basics.arrays import Values
from sa_atp.lab.parameters import service as parameter_service
from sa_atp.lab.parameters.client import StreamHost
from sa_atp.lab.parameters.frames import CHUNK, JOB, KEY, OPENING, RANK, SERVICE
from sa_atp.lab.parameters.parameter_worker import ParameterError
from sa_atp.lab.parameters.rules.messages import SERVER, JoinTraining, Open, Outgoing, Pull, Push, Task
from sa_atp.lab.parameters.service import ParameterService
from sa_atp.lab.plans import plan_files
from sa_atp.lab.runs.processes import Group

WAIT_S = 60.0
PLAN = plan_files.parse(
    '[run]\nsteps = 2\npolicies = ["ssp"]\n[topology]\nworkers = 2\n[job]\nmodel = "resnet-50"\nmodel_scale = 0.0001\n'
    'micro_batches = 1\nbatch_size = 8\n[straggler]\npattern = "none"\n',
    "here",
)


@pytest.fixture
def service() -> Iterator[ParameterService]:
    made = ParameterService("127.0.0.1:0")
    made.start()
    yield made
    made.stop()


def address(service: ParameterService) -> str:
    return "{}:{}".format(*service.address)


class Worker(StreamHost):
    """A worker that sends the messages of a test."""

    def __init__(self, at: str, rank: int, *, job: str = "job", key: str = "secret", values: int = 3) -> None:
        opening = Open(policy="ssp", plan=PLAN.as_dict(), values=values, sample_bytes=10) if rank == 0 else None
        super().__init__(at, job, key, rank, 2, lambda _: np.zeros(0, np.uint8), opening)
        self.heard: list[Any] = []
        self._news = threading.Condition()
        self.listen(self._hear)

    def _hear(self, sender: int, message: Any, values: Values | None) -> None:
        with self._news:
            self.heard.append(message)
            self._news.notify_all()

    def hears(self, kind: str, count: int = 1) -> Any:
        """Waits for a message. Returns: the last one of that kind."""

        def found() -> list[Any]:
            return [each for each in self.heard if type(each).__name__ == kind]

        with self._news:
            assert self._news.wait_for(lambda: len(found()) >= count, WAIT_S), (kind, self.heard)
            return found()[-1]

    def step(self, clock: int, values: int = 3) -> None:
        self.send(Outgoing(SERVER, Pull(clock=clock)))
        self.hears("GoAhead", clock + 1)
        self.send(Outgoing(SERVER, Push(clock=clock, tasks=(Task(clock, self.rank, 0),)), np.ones(values, np.float32)))
        self.hears("Applied", clock + 1)


def joined(at: str, rank: int, values: int = 3) -> Worker:
    worker = Worker(at, rank, values=values)
    worker.send(Outgoing(SERVER, JoinTraining(), np.zeros(values, np.float32) if rank == 0 else None))
    return worker


def test_a_worker_that_goes_away_ends_the_job_for_all(service: ParameterService) -> None:
    with joined(address(service), 0) as here:
        with joined(address(service), 1) as other:
            other.step(0)
        assert here.hears("JobFailed").reason == "rank 1: its connection has ended"
        with pytest.raises(ParameterError, match="rank 1: its connection has ended"):
            here.call("Result")


def test_arrays_of_several_messages_arrive_whole(service: ParameterService) -> None:
    values = 3 * CHUNK // 4 + 1
    with joined(address(service), 0, values) as here, joined(address(service), 1, values) as other:
        here.step(0, values)
        other.step(0, values)
        here.step(1, values)
        other.step(1, values)
        here.hears("Over")
        assert json.loads(here.call("Result"))["wrong"] == []
        last = np.frombuffer(here.call("Parameters", step=1), np.float32)
        assert last.shape == (values,)
        assert (last == last[0]).all()
        assert last[0] < 0


# --- strangers ------------------------------------------------------------------------------------------------------------


def test_a_stranger_has_no_part_in_a_run(service: ParameterService) -> None:
    """A stranger knows the job's name, which lists of processes show, but not its key."""
    at = address(service)
    with joined(at, 0) as here, joined(at, 1) as other:
        here.step(0)
        other.step(0)
        stranger = StreamHost(at, "job", "guess", 1, 2, lambda _: np.zeros(0, np.uint8))
        for name in ("Result", "Parameters"):
            with pytest.raises(ParameterError, match="there is no job 'job' that this caller belongs to"):
                stranger.call(name, step=0)
        with pytest.raises(ParameterError, match="Method not found"):
            stranger.call("Close")
        # a job of its own, of the same name, is another one
        with joined(at, 0) as _, Worker(at, 0, key="another") as own:
            own.send(Outgoing(SERVER, JoinTraining(), np.full(3, 7, np.float32)))
            # and who knows the key comes too late for a rank that is there
            with Worker(at, 1) as second:
                assert second.hears("JobFailed").reason.endswith("rank 1 is connected already")
        assert not [each for each in other.heard if type(each).__name__ == "Failed"]
        here.step(1)
        other.step(1)
        here.hears("Over")
        for _ in range(2):
            found = json.loads(here.call("Result"))
            assert (len(found["taken"]), found["wrong"]) == (4, [])


def test_an_invalid_job_is_refused_in_one_line(service: ParameterService) -> None:
    with Worker(address(service), 0, values=1 << 40) as worker:
        said = worker.hears("JobFailed").reason
    assert said.endswith(f"job 'job': {1 << 40} parameters: a job may have at most {1 << 28}")
    with Worker(address(service), 0, job="") as nameless:
        assert "sa-atp-rank, a number, in its metadata" in nameless.hears("JobFailed").reason


# --- what calls ask for ---------------------------------------------------------------------------------------------------

ARGUMENTS = [
    (b"", "argument: not JSON"),
    (b"\xff\xfe", "argument: not JSON"),
    (b'{"step": NaN}', "argument: not JSON"),
    (b'{"step": 0, "step": 1}', "argument: key 'step' is there twice"),
    (b"[" * 100_000, "argument: not JSON"),
    (b'{"step": ' + b"9" * 5000 + b"}", "argument: not JSON"),
    (b"[]", "argument: []: expected a JSON object"),
    (b"null", "argument: None: expected a JSON object"),
    (b"{}", '"step" is None: expected a whole number below 1'),
    *(
        (json.dumps({"step": wrong}).encode(), f'"step" is {wrong!r}: expected a whole number below 1')
        for wrong in (-1, 1, 1 << 70, 0.0, "0", True, None, [0])
    ),
]
RANKS = [
    *((wrong, "INVALID_ARGUMENT", "a number, in its metadata") for wrong in ("", "-1", "1.0", "9" * 5000)),
    ("0", "INVALID_ARGUMENT", "not a message that opens a job"),
    ("2", "FAILED_PRECONDITION", "rank 2: the job has 2 workers"),
    ("1", "FAILED_PRECONDITION", "rank 1 is connected already"),
]


def test_what_calls_and_streams_ask_for_is_refused_in_one_line_and_the_job_goes_on(service: ParameterService) -> None:
    metadata = ((JOB, "job"), (KEY, "secret"))
    with joined(address(service), 0) as here, joined(address(service), 1) as other:
        other.step(0)
        for call, why in (("Result", "the job is not over"), ("Parameters", "expected a whole number below 0")):
            with pytest.raises(ParameterError, match=why):
                here.call(call)
        here.step(0)
        with grpc.insecure_channel(address(service)) as channel:
            parameters = channel.unary_unary(f"/{SERVICE}/Parameters")
            connect = channel.stream_stream(f"/{SERVICE}/Connect")
            for argument, why in ARGUMENTS:
                with pytest.raises(grpc.RpcError) as refused:
                    parameters(argument, metadata=metadata, timeout=WAIT_S)
                assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert refused.value.details().startswith(why)
                assert "\n" not in refused.value.details()
            for rank, status, why in RANKS:
                with pytest.raises(grpc.RpcError) as refused:
                    list(connect(iter(()), metadata=(*metadata, (RANK, rank)), timeout=WAIT_S))
                assert refused.value.code().name == status
                assert why in refused.value.details()
        here.step(1)
        other.step(1)
        here.hears("Over")


# --- sizes ----------------------------------------------------------------------------------------------------------------


def peak_mb(process: int) -> int:
    [line] = [each for each in Path(f"/proc/{process}/status").read_text().splitlines() if each.startswith("VmHWM")]
    return int(line.split()[1]) // 1024


def test_a_payload_larger_than_the_job_is_refused_by_its_head(service: ParameterService) -> None:
    with joined(address(service), 0) as here, joined(address(service), 1) as other:
        other.step(0)
        large = np.zeros(100 << 20, np.float32)
        other.send(Outgoing(SERVER, Push(clock=0, tasks=(Task(0, 1, 0),)), large))
        assert here.hears("JobFailed").reason == (
            f"rank 1: it sent an invalid message: {large.nbytes} bytes of payload with a message Push, expected at most 12"
        )


def test_large_messages_of_strangers_take_no_memory(tmp_path: Path) -> None:
    """A stranger sends messages of 64 MB to every call."""
    with Group() as group:
        process, at = started(group, tmp_path)
        before = peak_mb(process.pid)
        data = bytes(64 << 20)
        for name in ("Open", "Connect", "Result", "Parameters"):
            with grpc.insecure_channel(at, options=[("grpc.max_send_message_length", -1)]) as channel:
                call = channel.stream_stream(f"/{SERVICE}/{name}")
                with pytest.raises(grpc.RpcError):
                    list(call(iter([data]), metadata=((JOB, "job"), (KEY, "k"), (RANK, "0")), timeout=WAIT_S))
        with grpc.insecure_channel(at) as channel:
            call = channel.stream_stream(f"/{SERVICE}/Connect")(iter(()), metadata=((OPENING, bytes(4 << 20)),))
            assert call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        # before 1.85 gRPC takes in a message that it refuses, one at a time
        most_mb = 40 if tuple(map(int, grpc.__version__.split(".")[:2])) >= (1, 85) else 100
        assert peak_mb(process.pid) - before < most_mb


# --- how many -------------------------------------------------------------------------------------------------------------


def started(group: Group, folder: Path) -> tuple[Any, str]:
    """Runs `sa-atp params` as a process. Returns: the process and its address."""
    process = group.start("params", ["sa_atp", "params", "--listen", "127.0.0.1:0"], folder / "params.log")
    return process._process, "{}:{}".format(*process.answer(WAIT_S)["address"])


def half_open(at: str, rank: int, count: int, leave: threading.Event) -> list[Any]:
    """Silent streams on one connection."""
    channel = grpc.insecure_channel(at, options=[("grpc.use_local_subchannel_pool", 1)])

    def silent() -> Iterator[bytes]:
        leave.wait(WAIT_S)
        yield from ()

    metadata = ((JOB, "job"), (KEY, "guess"), (RANK, str(rank)))
    return [channel, *(channel.stream_stream(f"/{SERVICE}/Connect")(silent(), metadata=metadata) for _ in range(count))]


def test_silent_streams_block_neither_workers_nor_shutdown(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    leave = threading.Event()
    with Group() as group:
        process, at = started(group, tmp_path)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        try:
            silent = [each for n in range(11) for each in half_open(at, n % 2, 50, leave)]
            with joined(at, 0) as here, joined(at, 1) as other:
                here.step(0)
                other.step(0)
                threads = len(os.listdir(f"/proc/{process.pid}/task"))
                assert threads < 60
                here.step(1)
                other.step(1)
                here.hears("Over")
                assert json.loads(here.call("Result"))["wrong"] == []
            process.send_signal(signal.SIGINT)
            assert process.wait(WAIT_S) == 0
        finally:
            leave.set()
            for each in silent:
                if isinstance(each, grpc.Channel):
                    each.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_streams_that_open_no_job_or_do_not_join_are_closed(
    service: ParameterService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameter_service, "ANNOUNCE_S", 0.5)
    leave = threading.Event()
    channel, call = half_open(address(service), 0, 1, leave)
    assert call.code() is grpc.StatusCode.INVALID_ARGUMENT  # waits until it has ended
    leave.set()
    channel.close()
    # nor does one stay that has a place in a job, and does not join
    with Worker(address(service), 0) as here:
        assert here.hears("JobFailed")
