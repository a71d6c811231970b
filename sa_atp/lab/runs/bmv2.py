"""BMv2 as a process: finding and starting it, and its Thrift command line.

BMv2 is searched in the folder $SA_ATP_BMV2 (or its `bin`), and on PATH.
"""

import contextlib
import os
import select
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from sa_atp.basics import needs
from sa_atp.basics.errors import MissingPartError, UserError
from sa_atp.lab.runs.processes import Process, ProcessError

START_TIMEOUT_S = 30.0  # a busy machine
ANSWER_TIMEOUT_S = 30.0
END_TIMEOUT_S = 5.0
PROMPT = b"RuntimeCmd: "


def require(program: str) -> Path:
    """Raises: MissingPartError: says how to get it."""
    found = needs.find(program)
    if found is None:
        raise MissingPartError(f"{program} of BMv2 is not on this machine: {needs.PROGRAMS[program].how}")
    return found


def free_port() -> int:
    """A free TCP port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(arguments: Sequence[str], log: Path) -> Process:
    """Starts BMv2 with P4Runtime and Thrift; the caller ends it. Raises: MissingPartError."""
    return Process("BMv2", arguments, log, program=(str(require("simple_switch_grpc")),), talks=False)


class CommandLine:
    """`simple_switch_CLI`: one command, one answer."""

    def __init__(self, switch: Process, thrift_port: int) -> None:
        """Waits until the switch answers. Raises: MissingPartError, ProcessError."""
        self._switch = switch
        self._command = [str(require("simple_switch_CLI")), "--thrift-port", str(thrift_port)]
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _listens(thrift_port):
            switch.check()
            if time.monotonic() > deadline:
                raise switch.failure(f"did not open its Thrift port in {START_TIMEOUT_S:.0f} s")
            time.sleep(0.02)
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            self._answer()
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def do(self, command: str) -> str:
        """Runs a command. Returns: its output. Raises: UserError: BMv2 refuses the command; ProcessError."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(command.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._switch.failure(f"does not take {command}") from None
        answer = self._answer()
        for line in answer.splitlines():
            if line.startswith(("Error", "Invalid", "*** Unknown")):
                raise UserError(f"BMv2 refuses `{command}`: {line}")
        if "Traceback" in answer:
            raise UserError(f"BMv2's command line fails at `{command}`: {answer.splitlines()[-1]}")
        return answer.strip()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        found = b""
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while not found.endswith(PROMPT):
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._process.stdout.fileno(), 1 << 16) if ready else b""
            if not data:
                self._switch.check()
                said = found.decode(errors="replace").strip() or "nothing"
                raise ProcessError(
                    f"{' '.join(self._command)} {'ended' if ready else 'did not answer'}; it said: {said}"
                )
            found += data
        return found.removesuffix(PROMPT).decode(errors="replace")

    def end(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._process.terminate()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def start_arguments(
    json_path: Path | None, *, device_id: int, thrift_port: int, grpc: str, options: Mapping[str, str] | None = None
) -> list[str]:
    """Arguments of simple_switch_grpc.

    Args:
        json_path: the program; None: it will be pushed over P4Runtime.
        grpc: address of the P4Runtime server, which may be unix:PATH.
        options: further options of the target, without dashes.
    """
    program = ["--no-p4"] if json_path is None else [str(json_path)]
    target = {"grpc-server-addr": grpc, **(options or {})}
    return [
        *program,
        "--device-id",
        str(device_id),
        "--thrift-port",
        str(thrift_port),
        "--",
        *(word for name, value in target.items() for word in (f"--{name}", value)),
    ]
