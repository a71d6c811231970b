"""The process that imports once what the processes of a run import, and forks one for each request.

It is started by nursery.py, with the descriptor of a socket as its first argument, and room for the command lines of its
children as its second. A request is a message of JSON with four descriptors: standard input, output and error of the new
process, and a pipe for its number and its status.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

from sa_atp.basics.errors import shortage

PRELOADED = (
    "sa_atp.lab.backends.worker_process",
    "sa_atp.net.parameter_server.server",
    "sa_atp.net.switch_process.process",
)
MOST_BYTES = 1 << 20  # of a request
PR_SET_PDEATHSIG = 1


def main() -> None:
    _show_as(sys.executable, "-m", "sa_atp.lab.runs.nursery_process")
    _preload()
    gc.collect()
    gc.freeze()  # memory that is shared stays shared
    requests = socket.socket(fileno=int(sys.argv[1]))
    selector = selectors.DefaultSelector()
    selector.register(requests, selectors.EVENT_READ)
    status_of: dict[int, int] = {}  # descriptors by which processes are waited for, and of the pipes for their status
    while True:
        for key, _ in selector.select():
            if key.fileobj is requests:
                message, files, _, _ = socket.recv_fds(requests, MOST_BYTES, 4)
                if not message:
                    return  # nobody asks any more; those that still run get a signal
                request, parent = json.loads(message), os.getpid()
                for name in request["imports"]:
                    with contextlib.suppress(Exception):
                        importlib.import_module(name)
                try:
                    number = os.fork()
                except OSError as error:
                    os.write(files[2], f"sa-atp: {shortage(error) or error}\n".encode())
                    os.write(files[3], b"0\n1\n")
                    for each in files:
                        os.close(each)
                    continue
                if number == 0:
                    for each in (selector.fileno(), requests.fileno(), *status_of, *status_of.values()):
                        os.close(each)
                    _become(request, files, parent)
                os.write(files[3], f"{number}\n".encode())
                for each in files[:3]:
                    os.close(each)
                process = os.pidfd_open(number)
                status_of[process] = files[3]
                selector.register(process, selectors.EVENT_READ, number)
            else:
                selector.unregister(key.fd)
                status = os.waitstatus_to_exitcode(os.waitpid(key.data, 0)[1])
                out = status_of.pop(key.fd)
                with contextlib.suppress(BrokenPipeError):
                    os.write(out, f"{status}\n".encode())
                os.close(out)
                os.close(key.fd)


def _preload() -> None:
    """Imports modules, and loads compiled kernels if there are any. What fails here fails again, and is told, in the
    process that needs it.
    """
    with contextlib.suppress(Exception):
        importlib.import_module("sa_atp.cli").build_parser()  # by name, as commands are given: it stands above this
        for name in PRELOADED:
            importlib.import_module(name)
        from sa_atp.net.loop import compiled

        if compiled.are_kept():
            compiled.connection_kernels()
            compiled.socket_kernels()
            compiled.plan_kernels()


def _become(request: dict[str, Any], files: list[int], parent: int) -> NoReturn:
    """Goes on as the process that was asked for. Raises: SystemExit: at its end."""
    os.setsid()  # Ctrl-C reaches only who asked
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)
    with contextlib.suppress(ImportError):
        from sa_atp.net.watching import door

        door.note_parent(request["by"])
    for at, each in enumerate(files[:3]):
        os.dup2(each, at)
    for each in files:
        os.close(each)
    # what Python has opened knows whether it can seek
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.path[0] = request["folder"]
    module, *_ = sys.argv[:] = request["arguments"]
    _show_as(sys.executable, "-m", *sys.argv)
    sys.modules.pop(module, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()


def _show_as(*command: str) -> None:
    """Shows a command line in place of this process's own, in `ps` and /proc/PID/cmdline, as far as there is room."""
    start, end = (int(each) for each in Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    room = end - start
    ctypes.memmove(start, "\0".join(command).encode()[: room - 1].ljust(room, b"\0"), room)


if __name__ == "__main__":
    main()
