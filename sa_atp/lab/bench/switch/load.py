"""Measures the start time of a switch process, until it can handle packets.

    python -m sa_atp.lab.bench.switch.load LANES CONTRIBUTIONS CACHE

It runs in a fresh process, because imports and the start of numba count. It prints one line of JSON.
"""

import json
import sys
import time

STARTED = time.perf_counter()  # before slow imports


def main(lanes: int, contributions: int, cache: str) -> None:
    from pathlib import Path

    from sa_atp.net.switch_process.datapath import code
    from sa_atp.switches import artefacts
    from sa_atp.switches.embedded.device import Device

    Device(clock=lambda: 0, cache=Path(cache)).install(artefacts.program(lanes, contributions).device_config())
    code.ready(Path(cache))
    print(json.dumps({"seconds": time.perf_counter() - STARTED}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
