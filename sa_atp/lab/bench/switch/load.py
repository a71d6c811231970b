"""Measures the start time of a switch process, until it can handle packets.

It runs in a fresh process, because imports and the start of numba count.
"""

import time
from typing import Any

STARTED = time.perf_counter()  # before slow imports


def seconds(arguments: dict[str, Any]) -> float:
    """The time since this module was imported. Args: arguments: the program's `build`, and the folder `cache`."""
    from pathlib import Path

    from sa_atp.net.switch_process.datapath import code
    from sa_atp.switches import artefacts
    from sa_atp.switches.embedded.device import Device

    cache = Path(arguments["cache"])
    Device(clock=lambda: 0, cache=cache).install(artefacts.program(*arguments["build"]).device_config())
    code.ready(cache)
    return time.perf_counter() - STARTED
