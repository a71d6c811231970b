"""A switch's loop, from ready to its closing line, for `sa-atp switch` and `sa-atp leaf`."""

import json
from collections.abc import Callable

from sa_atp.basics.waiting import nothing_waited_for
from sa_atp.cli.parts import metrics_option
from sa_atp.net.garbage_collection import freeze_loaded_objects
from sa_atp.net.switch_process.process import SwitchLoop
from sa_atp.net.watching import door, looking
from sa_atp.net.watching.of_switch import of_switch
from sa_atp.net.watching.states import SwitchState


def serve(
    loop: SwitchLoop, grpc: str, udp: object, *, metrics: tuple[str, int] | None, say: Callable[[str], None]
) -> None:
    """Runs a loop until it is stopped, and closes it. Says on standard output that the switch is ready, to whoever has
    started it, and tells its state to whoever asks.

    Args:
        grpc: P4Runtime's address. udp: addresses of ports, for the line on standard output.
        metrics: where to serve metrics (`--metrics`); None: nowhere.
    """

    def state() -> SwitchState:
        return door.between_turns(loop.call, lambda: of_switch(loop, grpc))

    with (
        door.telling(state),
        metrics_option.serving(metrics, lambda: looking.put_together([state()])) as served,
    ):
        freeze_loaded_objects()
        print(json.dumps({"ready": True, "grpc": grpc, "udp": udp, "metrics": served}), flush=True)
        with nothing_waited_for():
            loop.run()
    dropped = [each.total() for each in loop.drops()]
    arrived, left, lost = loop.packet_counts()
    loop.close()
    say(f"{arrived} packets arrived, {left} left, {lost} were for ports that are not attached")
    if dropped:
        say(f"dropped: {'; '.join(dropped)}")
