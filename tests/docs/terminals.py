"""Runs a scene: commands one after another, while others run in the background. Run in a network namespace:

python -m sa_atp.net.sockets.namespace python tests/docs/terminals.py < SCENE.json

The network has loopback, which also is 10.0.0.0/8, and a veth pair. A command that stays is ready when it has printed a
line on standard output; it is ended with Ctrl-C. Every command must end with status 0. Needs `ip`.
"""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator

NETWORK = """
ip link set lo up
ip address add 10.0.0.1/8 dev lo
ip link add veth1 type veth peer name veth2
ip link set veth1 up
ip link set veth2 up
"""
LONGEST_S = 240.0


def bash(command: str) -> list[str]:
    return ["bash", "-euo", "pipefail", "-c", command]


@contextlib.contextmanager
def staying(command: str) -> Iterator[None]:
    """Raises: SystemExit: a command was never ready, or failed."""
    with subprocess.Popen(bash(f"exec {command}"), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            if not process.stdout.readline():
                raise SystemExit(f"{command}: ended, with status {process.wait(LONGEST_S)}, before it was ready")
            yield
        finally:
            process.send_signal(signal.SIGINT)
            status = process.wait(LONGEST_S)
    if status != 0:
        raise SystemExit(f"{command}: Ctrl-C ended it with status {status}")


def play(commands: list[str], stays: list[bool], beside: list[str]) -> None:
    subprocess.run(bash(NETWORK), check=True)
    with contextlib.ExitStack() as terminals:
        for command in beside:
            terminals.enter_context(staying(command))
        for command, stay in zip(commands, stays, strict=True):
            print(f"$ {command}", flush=True)
            if stay:
                with staying(command):
                    pass
            elif status := subprocess.run(bash(command), check=False, timeout=LONGEST_S).returncode:
                raise SystemExit(f"{command}: status {status}")


if __name__ == "__main__":
    # what runs in the background of a shell has Ctrl-C ignored, and its children would, too
    signal.signal(signal.SIGINT, signal.default_int_handler)
    play(**json.load(sys.stdin))
