"""A worker whose parameters are on a server, in a process of its own: `backends.worker_process` calls `train`."""

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

import numpy as np

from sa_atp.basics.arrays import Octets, Values
from sa_atp.lab import policies
from sa_atp.lab.parameters.frames import ADMITTED, JOB, KEY, OPENING, RANK, SERVICE, assemble, pack
from sa_atp.lab.parameters.parameter_worker import ParameterError, ParameterWorker
from sa_atp.lab.parameters.rules.messages import SERVER, JobFailed, Open, Outgoing, Tasks, encode
from sa_atp.lab.parameters.update_checker import digest
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.runs.expected import expected_step_s
from sa_atp.lab.runs.tasks import (
    JobWorkload,
    describe_step,
    device_slowdown,
    evaluate,
    make_shared_device,
    make_workload,
    plan_of,
    straggler_pattern,
)
from sa_atp.net.clock import now_us
from sa_atp.steps.real_time import compute, drive
from sa_atp.steps.step_record import StepRecord
from sa_atp.switches.p4runtime.rpc import grpc

CALL_S = 60.0
OPEN_S = (
    60.0  # how long a worker tries to connect, until rank 0 has opened the job and the server has room for a stream
)
AGAIN_S = 0.1  # between two tries
_AGAIN = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED)
GRACE_S = 50.0  # how long a worker waits for a go-ahead beyond the time of the slowest step


class StreamHost:
    """A `ParameterHost` over a gRPC stream to the server, which forwards messages among workers, too."""

    def __init__(
        self,
        address: str,
        job: str,
        key: str,
        rank: int,
        world_size: int,
        samples: Callable[[Tasks], Octets],
        opening: Open | None = None,
    ) -> None:
        """Args:
        address: HOST:PORT.
        key: the job's secret, which only its workers have.
        samples: returns the samples of tasks that move to another worker.
        opening: rank 0's description of the job; None on other ranks.
        """
        self.rank = rank
        self.world_size = world_size
        self._address = address
        self._metadata = ((JOB, job), (KEY, key))
        self._samples = samples
        self._opening = () if opening is None else ((OPENING, encode(opening)),)
        # the parameters after a step come as one message; messages on streams stay below the default of 4 MB
        self._channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])
        self._waiting: queue.SimpleQueue[Iterator[bytes] | None] = queue.SimpleQueue()
        self._leaving = threading.Event()
        self._admitted = False
        self._receive: Callable[[int, Any, Values | None], None] = lambda *_: None
        self._thread = threading.Thread(target=self._run, name="sa-atp-parameters", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._leaving.set()
        self._waiting.put(None)
        if not self._admitted:
            self._channel.close()
        if self._thread.is_alive():
            self._thread.join(CALL_S)
        self._channel.close()

    def call(self, name: str, **asked: Any) -> bytes:
        """Calls a method of the server for this job. Raises: ParameterError."""
        method = self._channel.unary_unary(f"/{SERVICE}/{name}")
        try:
            answer: bytes = method(
                json.dumps(asked).encode(), metadata=self._metadata, timeout=CALL_S, wait_for_ready=True
            )
        except grpc.RpcError as error:
            raise self._error(error) from None
        return answer

    # --- ParameterHost ------------------------------------------------------------------------------------------------

    def now_us(self) -> int:
        return now_us()

    def listen(self, receive: Callable[[int, Any, Values | None], None]) -> None:
        self._receive = receive
        self._thread.start()

    def send(self, outgoing: Outgoing) -> None:
        payload = self._samples(outgoing.samples_of) if outgoing.samples_of else outgoing.values
        self._waiting.put(pack(outgoing.to, outgoing.message, payload))

    def _frames(self, admitted: "Future[bool]") -> Iterator[bytes]:
        """The frames to send on a stream, once the server has accepted it."""
        if not admitted.result():
            return
        while (frame := self._waiting.get()) is not None:
            yield from frame

    def _run(self) -> None:
        until = time.monotonic() + OPEN_S
        reason = self._stream()
        while reason is None and not self._leaving.wait(AGAIN_S):
            reason = self._stream(may_ask_again=time.monotonic() < until)
        self._receive(
            SERVER, JobFailed(reason=reason or "this worker has left"), None
        )  # of no account when the job is over

    def _stream(self, may_ask_again: bool = True) -> str | None:
        """Runs a stream to the server until one side ends it. Returns: the reason; None: try again."""
        admitted: Future[bool] = Future()
        connect = self._channel.stream_stream(f"/{SERVICE}/Connect")
        try:
            self._wait_for_server()
            call = connect(self._frames(admitted), metadata=(*self._metadata, (RANK, str(self.rank)), *self._opening))
            self._admitted = any(name == ADMITTED for name, _ in call.initial_metadata())
            admitted.set_result(self._admitted)
            for frame in assemble(call):
                self._receive(frame.peer, frame.message, frame.values)
        except grpc.RpcError as error:
            if not self._admitted and may_ask_again and error.code() in _AGAIN:
                return None
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return f"no server of parameters answers at {self._address} (waited {CALL_S:g} s)"
            return str(self._error(error))
        except ValueError as error:
            if self._leaving.is_set():  # gRPC raises ValueError on a closed channel
                return "this worker has left"
            return f"the server of parameters at {self._address} sent an invalid message: {error}"
        return f"the server of parameters at {self._address} has ended the connection"

    def _wait_for_server(self) -> None:
        """Waits until the server answers. Raises: grpc.RpcError: no answer in CALL_S, or the channel is closed."""
        try:
            self._channel.unary_unary(f"/{SERVICE}/Result")(b"{}", timeout=CALL_S, wait_for_ready=True)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
                raise  # any other status is an answer: this call names no job

    def _error(self, error: Any) -> ParameterError:
        where = f"the server of parameters at {self._address}"
        match error.code():
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return ParameterError(f"{where} has not answered for {CALL_S:.0f} s: is `sa-atp params` running there?")
            case grpc.StatusCode.UNAVAILABLE:
                return ParameterError(f"{where} is gone ({error.details()})")
        return ParameterError(f"{where}: {error.details()}")


def train(task: dict[str, Any]) -> dict[str, Any]:
    """Runs one policy on this worker. Returns: its records as JSON-able data, on rank 0 with the server's."""
    plan = plan_of(task)
    rank, policy = int(task["rank"]), policies.parameter_policy(str(task["policy"]))
    pattern = straggler_pattern(plan)
    workload = make_workload(plan, int(task["repetition"]))
    workload.gradient_at(
        workload.initial(), 0, rank, 0
    )  # excludes PyTorch's one-time initialisation from the measurement
    device = make_shared_device(plan, rank, policy.most_parallel(plan))
    records: list[dict[str, Any]] = []

    def samples(tasks: Tasks) -> Octets:
        return np.concatenate([workload.samples(t.clock, t.shard, t.micro_batch) for t in tasks])

    def begins(clock: int) -> None:
        device.slowdown = device_slowdown(plan, pattern, clock, rank)

    def ended(record: StepRecord) -> None:
        records.append(describe_step(record, pattern.slowdown_of(record.step, rank)))
        if rank == 0:
            print(json.dumps({"step": min(len(records), plan.run.steps)}), flush=True)

    opening = Open(
        policy=policy.name,
        plan=plan.as_dict(),
        values=workload.values,
        sample_bytes=len(workload.samples(0, 0, 0)),
    )
    address, job, key = (str(task[name]) for name in ("parameters", "job", "key"))
    with StreamHost(address, job, key, rank, plan.topology.workers, samples, opening if rank == 0 else None) as host:
        worker = ParameterWorker(
            host,
            workload,
            policy.worker_rules(plan, rank),
            curve=plan.job.parallel_curve(rank),
            pause_us=lambda clock: pattern.pause_us_of(clock, rank),
            patience_us=_patience_us(plan),
            begins=begins,
            ended=ended,
        )
        drive(worker.run(), lambda effect: compute(effect, device, workload))
        server = _server(host, workload) if rank == 0 else None
    return {
        "rank": rank,
        "records": records,
        "pushed": [(version, digest(update)) for version, _, update in worker.pushed],
        "parameters": server,
        "evaluations": [],
        "values": workload.values,
        "device_cores": device.cores,
    }


def _patience_us(plan: Plan) -> int:
    """How long to wait for a go-ahead, which comes at the latest when the slowest worker ends its step."""
    return int((expected_step_s(plan) + GRACE_S) * 1e6)


def _server(host: StreamHost, workload: JobWorkload) -> dict[str, Any]:
    """The server's records, with an evaluation of the parameters after each step. Called after training."""
    found: dict[str, Any] = json.loads(host.call("Result"))
    steps = range(len(found["ends_us"]))
    snapshots = ((step, np.frombuffer(host.call("Parameters", step=step), np.float32).copy()) for step in steps)
    found["evaluations"] = [each for step, values in snapshots for each in evaluate(workload, [(step, values)])]
    return found
