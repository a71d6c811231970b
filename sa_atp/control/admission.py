"""Between the parameter server, which decides about jobs, and the switches, which must know of them.

The parameter server's loop must not wait for P4Runtime, so a thread takes its events, writes tables, and reports back.
Between events it looks after the switches.
"""

import queue
import sys
import threading
import traceback
from collections.abc import Callable, Sequence

from sa_atp.control import fabric
from sa_atp.control.fabric import Keeper
from sa_atp.errors import SaAtpError
from sa_atp.transport.server_events import Admit, Retire, ServerEvent
from sa_atp.wire.datagrams import Address

CHECK_EVERY_S = 1.0


class Installer:
    """Installs and removes jobs on all switches, one after the other, in a thread."""

    def __init__(
        self,
        keepers: Sequence[Keeper],
        server: Address,
        *,
        admitted: Callable[[Admit, list[list[int]]], None],
        refused: Callable[[Admit, str], None],
    ) -> None:
        """Args:
        keepers: of switches that are up.
        server: the parameter server's address as packets carry it.
        admitted: called from the thread with what was submitted, and the ranks below each leaf.
        refused: called from the thread with what was submitted, and the reason.
        """
        self._keepers = tuple(keepers)
        self._server = server
        self._admitted = admitted
        self._refused = refused
        self._complaints: dict[Keeper, str | None] = {}
        self._events: queue.SimpleQueue[ServerEvent | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sa-atp-installer", daemon=True)
        self._thread.start()

    def submit(self, event: ServerEvent) -> None:
        self._events.put(event)

    def close(self) -> None:
        """Finishes what was submitted, and ends the connections."""
        self._events.put(None)
        self._thread.join(timeout=10)
        for keeper in self._keepers:
            keeper.close()

    def _run(self) -> None:
        while True:
            try:
                event = self._events.get(timeout=CHECK_EVERY_S)
            except queue.Empty:
                self._check()
                continue
            match event:
                case None:
                    return
                case Admit():
                    self._install(event)
                case Retire(number, _):
                    self._remove(number)

    def _install(self, job: Admit) -> None:
        try:
            for keeper in self._keepers:
                keeper.install(job, self._server)
        except SaAtpError as error:
            self._refused(job, str(error))
        except Exception as error:
            # whatever it is: those who join must hear of it, and the next job be served
            say(traceback.format_exc())
            self._refused(job, f"the control plane failed ({type(error).__name__}: {error})")
        else:
            self._admitted(job, fabric.leaves([keeper.place for keeper in self._keepers], job))

    def _remove(self, number: int) -> None:
        for keeper in self._keepers:
            try:
                keeper.remove(number)
            except SaAtpError as error:
                # the job is over either way; its entries admit nobody who is still there
                say(f"job {number} could not be removed: {error}")

    def _check(self) -> None:
        for keeper in self._keepers:
            found = keeper.check()
            if found is not None and found != self._complaints.get(keeper):
                say(found)
            self._complaints[keeper] = found


def say(text: str) -> None:
    print(f"sa-atp: {text}", file=sys.stderr, flush=True)
