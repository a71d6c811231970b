"""The server of the parameters as a process: gRPC around `parameters.server`.

Each worker has a stream to it, with the messages of both directions; what workers say to each other goes through it, too.
Rank 0 opens a job, and at the end takes what the server has written down.
"""

import json
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sa_atp import policies
from sa_atp.arrays import Values
from sa_atp.errors import SaAtpError, UserError
from sa_atp.net.clock import now_us
from sa_atp.p4runtime.rpc import grpc
from sa_atp.parameters.messages import SERVER, Failed, Join, Outgoing
from sa_atp.parameters.server import ParameterServer, Snapshot
from sa_atp.testbed.parameter_frames import JOB, OPTIONS, RANK, SERVICE, Frame, pack, readdressed, unpack
from sa_atp.testbed.parameter_run import CheckingThread, UpdateChecker, describe_server
from sa_atp.testbed.tasks import plan_of
from sa_atp.words import plural

MOST_STREAMS = 1024  # workers of all jobs at once; each keeps a thread
OPEN_S = 60.0  # for which a worker waits until rank 0 has opened its job


class Job:
    """One job: its rules, its workers' streams, and what is checked."""

    def __init__(self, task: dict[str, Any]) -> None:
        """Args: task: plan, policy. Raises: UserError."""
        plan = plan_of(task)
        self.rules = policies.parameter_policy(str(task["policy"])).rules(plan)
        self.snapshots: list[Snapshot] = []
        self.checker: UpdateChecker | None = None
        self._checking: CheckingThread | None = None
        self._server = ParameterServer(
            self.rules,
            taken=lambda taken: self._checking.take(taken) if self._checking is not None else None,
            reached=self.snapshots.append,
        )
        self._lock = threading.Lock()
        self._streams: dict[int, queue.SimpleQueue[bytes | None]] = {}

    def connect(self, rank: int) -> "queue.SimpleQueue[bytes | None]":
        """Raises: UserError: the job has no such rank, or it is there already."""
        with self._lock:
            if not 0 <= rank < self.rules.terms.world_size:
                raise UserError(f"rank {rank}: the job has {plural(self.rules.terms.world_size, 'worker')}")
            if rank in self._streams:
                raise UserError(f"rank {rank} is there already")
            self._streams[rank] = queue.SimpleQueue()
            return self._streams[rank]

    def receive(self, rank: int, data: bytes) -> None:
        """Raises: ValueError: it is no frame."""
        frame = unpack(data)
        with self._lock:
            if frame.peer != SERVER:
                if frame.peer in self._streams:
                    self._streams[frame.peer].put(readdressed(data, rank))
                return
            if isinstance(frame.message, Join) and frame.values is not None:
                self._begin_checking(frame)
            self._send(self._server.receive(rank, frame.message, frame.values, now_us()))

    def lost(self, rank: int, reason: str) -> None:
        with self._lock:
            self._send(self._server.lost(rank, reason))

    def result(self) -> dict[str, Any]:
        """What the server has to tell; waits until all is checked."""
        if self._checking is None or self.checker is None:
            raise UserError("the job has not begun")
        self._checking.finish()
        return describe_server(self.checker, self.snapshots)

    def _begin_checking(self, frame: Frame) -> None:
        assert frame.values is not None
        if self._checking is None:
            self.checker = UpdateChecker(self.rules, frame.values)
            self._checking = CheckingThread(self.checker)

    def _send(self, says: list[Outgoing]) -> None:
        for each in says:
            if each.to in self._streams:
                self._streams[each.to].put(pack(SERVER, each.message, each.values))


class ParameterService:
    def __init__(self, listen: str) -> None:
        """Args: listen: HOST:PORT; port 0 is any free one. Raises: UserError: the address cannot be had."""
        self._jobs: dict[str, Job] = {}
        self._opened = threading.Condition()
        self._server = grpc.server(
            ThreadPoolExecutor(MOST_STREAMS + 8, thread_name_prefix="sa-atp-parameters"),
            options=[*OPTIONS, ("grpc.so_reuseport", 0)],
        )
        calls = {name: grpc.unary_unary_rpc_method_handler(_answering(call)) for name, call in self._calls.items()}
        calls["Connect"] = grpc.stream_stream_rpc_method_handler(self._connect)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, calls),))
        try:
            port = self._server.add_insecure_port(listen)
        except RuntimeError:
            port = 0
        if not port:
            raise UserError(f"--listen {listen}: expected HOST:PORT of this machine, not in use")
        self.address = (listen.rpartition(":")[0], port)

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop(0.5).wait(5.0)

    # --- calls --------------------------------------------------------------------------------------------------------

    @property
    def _calls(self) -> "dict[str, Callable[[dict[str, Any]], bytes]]":
        return {"Open": self._open, "Result": self._result, "Parameters": self._parameters, "Close": self._close}

    def _open(self, asked: dict[str, Any]) -> bytes:
        """A job begins. Asked: job, policy, plan."""
        job = Job(asked)
        with self._opened:
            if str(asked["job"]) in self._jobs:
                raise UserError(f"there is a job {asked['job']!r} already")
            self._jobs[str(asked["job"])] = job
            self._opened.notify_all()
        return b"{}"

    def _result(self, asked: dict[str, Any]) -> bytes:
        """What the server has written down, when the job is over. Asked: job."""
        return json.dumps(self._job(asked["job"]).result()).encode()

    def _parameters(self, asked: dict[str, Any]) -> bytes:
        """float32[values] after a step. Asked: job, step."""
        values: Values = self._job(asked["job"]).snapshots[int(asked["step"])].values
        return values.tobytes()

    def _close(self, asked: dict[str, Any]) -> bytes:
        """A job is over: what was kept of it goes. Asked: job."""
        with self._opened:
            self._jobs.pop(str(asked["job"]), None)
        return b"{}"

    def _job(self, name: Any, timeout_s: float = 0.0) -> Job:
        with self._opened:
            if not self._opened.wait_for(lambda: str(name) in self._jobs, timeout_s):
                raise UserError(f"there is no job {name!r}")
            return self._jobs[str(name)]

    # --- streams ------------------------------------------------------------------------------------------------------

    def _connect(self, frames: Iterator[bytes], context: Any) -> Iterator[bytes]:
        told = dict(context.invocation_metadata())
        try:
            rank = int(told[RANK])
            job = self._job(told[JOB], OPEN_S)
            waiting = job.connect(rank)
        except (KeyError, ValueError, SaAtpError) as error:
            yield pack(SERVER, Failed(reason=str(error)))
            return

        def listen() -> None:
            reason = "its connection has ended"
            try:
                for data in frames:
                    job.receive(rank, data)
            except grpc.RpcError:
                pass  # the worker has gone
            except ValueError as error:
                reason = f"it sent what is no message: {error}"
            except Exception as error:  # whatever it is, the others must hear that nobody goes on
                logging.getLogger(__name__).exception("rank %d", rank)
                reason = f"the server could not take its message: {error!r}"
            job.lost(rank, reason)
            waiting.put(None)

        threading.Thread(target=listen, name=f"sa-atp-worker-{rank}", daemon=True).start()
        while (data := waiting.get()) is not None:
            yield data


def _answering(call: Callable[[dict[str, Any]], bytes]) -> Callable[[bytes, Any], bytes]:
    """As a handler: JSON comes in, and what a user did wrong goes out as a status."""

    def answer(data: bytes, context: Any) -> bytes:
        try:
            return call(json.loads(data))
        except (SaAtpError, KeyError, ValueError, IndexError) as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise AssertionError from error  # abort has raised

    return answer
