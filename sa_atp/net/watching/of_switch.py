"""The state of an embedded switch, from its loop."""

import os

import numpy as np

from sa_atp.net.switch_process.process import SwitchLoop
from sa_atp.net.watching import door
from sa_atp.net.watching.states import DropState, PortState, SwitchState
from sa_atp.switches.control.events import COUNTER, EVENTS_A_JOB, Event
from sa_atp.switches.embedded.pipeline import Pipeline
from sa_atp.switches.p4runtime.errors import Refusal

NAMES = {event.value: event.name.lower() for event in Event}
OPEN = "slot_live"  # of a slot: whether its sum is not complete


def of_switch(loop: SwitchLoop, grpc: str) -> SwitchState:
    """Makes the record of a switch; called in its loop. Args: grpc: its P4Runtime address."""
    arrived, left, unattached = loop.packet_counts()
    pipeline = loop.device.pipeline
    slots, slots_open, events = (0, 0, {}) if pipeline is None else _of_program(pipeline)
    return SwitchState(
        grpc=grpc,
        process=os.getpid(),
        parent=door.parent(),
        device_id=loop.device.device_id,
        running_us=loop.now_us(),
        ports=[PortState(number=number, name=port.describe()) for number, port in loop.ports.items()],
        packets_in=arrived,
        packets_out=left,
        unattached=unattached,
        drops=[
            DropState(where=each.where, cause=each.cause, reason=each.description, packets=each.count)
            for each in loop.drops()
        ],
        slots=slots,
        slots_open=slots_open,
        events=events,
    )


def _of_program(pipeline: Pipeline) -> tuple[int, int, dict[str, dict[str, int]]]:
    """Slots, those that are open, and packets by job and event; nothing of another program than the aggregation's."""
    try:
        live, counter = pipeline.register(OPEN), pipeline.counter(COUNTER)
    except Refusal:
        return 0, 0, {}
    packets = counter[:, 0]
    events: dict[str, dict[str, int]] = {}
    for cell in np.flatnonzero(packets).tolist():
        job, event = divmod(cell, EVENTS_A_JOB)
        if event in NAMES:
            events.setdefault(str(job), {})[NAMES[event]] = int(packets[cell])
    return len(live), int(np.count_nonzero(live)), events
