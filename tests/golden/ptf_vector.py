"""What an exported golden vector does on a Tofino or its model: installs the program, its jobs and routes, sends packets,
and compares what comes out, byte by byte.

`scripts/tofino ptf` copies this file beside the vectors, as vector.py. Parameters of ptf (--test-params):

    grpc       HOST:PORT of the P4Runtime server            127.0.0.1:9559
    device_id  of the switch there                          1
    packing    stratum, or pi for bf_switchd with PI        stratum
    program    folder of the compiled program               what is installed
"""

import time
from pathlib import Path
from typing import Any, ClassVar

import ptf
from ptf import testutils
from ptf.base_tests import BaseTest

from sa_atp.switches import artefacts
from sa_atp.switches.control import jobs, routes, tofino
from sa_atp.switches.control.client import P4RuntimeClient
from sa_atp.switches.control.events import Event
from sa_atp.switches.control.jobspec import JobSpec

Step = tuple[str, Any]
WAIT_S = 0.1
SETTLE_S = 1.0


class Vector(BaseTest):  # type: ignore[misc]
    """One golden vector. A subclass for each is in a file of its own.

    steps: ("packet", (port, hex, [(port, hex) that must come out])), ("wait", None),
    ("counters", {job: {event: packets}}).
    """

    chip: ClassVar[str]
    lanes: ClassVar[int]
    jobs: ClassVar[tuple[JobSpec, ...]]
    routes: ClassVar[tuple[tuple[str, int], ...]]
    steps: ClassVar[tuple[Step, ...]]
    skip: ClassVar[str] = ""
    """why the vector cannot pass on this target"""

    def setUp(self) -> None:
        """Pushes the program, so that no slot holds anything, and fills its tables."""
        super().setUp()
        if self.skip:
            self.skipTest(self.skip)
        parameters = testutils.test_params_get()
        folder = parameters.get("program")
        program = tofino.from_folder(
            Path(folder) if folder else artefacts.tofino_folder(self.chip, self.lanes),
            parameters.get("packing", "stratum"),
        )
        self.dataplane = ptf.dataplane_instance
        self.client = P4RuntimeClient(
            parameters.get("grpc", "127.0.0.1:9559"), int(parameters.get("device_id", 1)), timeout_s=60
        ).open()
        self.addCleanup(self.client.close)
        self.client.push_pipeline(program.p4info(), program.device_config(), cookie=program.cookie)
        for prefix, port in self.routes:
            routes.add(self.client, prefix, port)
        for job in self.jobs:
            jobs.install(self.client, job, share_slots=True)
        time.sleep(SETTLE_S)
        self.dataplane.flush()

    def runTest(self) -> None:  # noqa: N802  (unittest's name)
        """The packets, in their order."""
        for what, step in self.steps:
            if what == "packet":
                self._packet(*step)
            elif what == "wait":
                time.sleep(WAIT_S)
            else:
                self._counters(step)

    def _packet(self, port: int, data: str, expected: list[tuple[int, str]]) -> None:
        testutils.send_packet(self, port, bytes.fromhex(data))
        for out, wanted in expected:
            testutils.verify_packet(self, bytes.fromhex(wanted), out)
        testutils.verify_no_other_packets(self)

    def _counters(self, wanted: dict[int, dict[str, int]]) -> None:
        """Own copies of results, which only a Tofino has, are not in the vector."""
        for job, events in wanted.items():
            found = {event: counts.packets for event, counts in jobs.counters(self.client, job).items()}
            for event in set(Event) - {Event.FINISHED}:
                name = event.name.lower().replace("_", " ")
                assert found.get(event, 0) == events.get(name, 0), f"job {job}: {name}"
