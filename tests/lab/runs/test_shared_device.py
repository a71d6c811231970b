"""Several tasks at a time on one device, as threads of a worker."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from sa_atp.steps.device import SharedDevice
from sa_atp.steps.parallel import NO_GAIN


def test_threads_share_a_device_in_real_time() -> None:
    """Without a gain, two pieces of work take no less than twice the time of one; each is really computed alone."""
    device = SharedDevice(20_000, curve=NO_GAIN)
    busy = threading.Lock()

    def work() -> bool:
        alone = busy.acquire(blocking=False)
        time.sleep(0.001)
        busy.release()
        return alone

    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: device.run(1, work), range(2))) == [True, True]
    assert time.monotonic() - began >= 0.039
