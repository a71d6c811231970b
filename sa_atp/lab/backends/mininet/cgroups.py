"""CPU quotas of hosts, by control groups of version 2, or of version 1 if its cpu controller is mounted."""

import contextlib
import os
import time
from functools import cache
from pathlib import Path

from sa_atp.basics.errors import MissingPartError, SaAtpError

PREFIX = "sa-atp-"
# Short, so that a limited host is evenly slow, instead of fast until its share is used up and then asleep.
PERIOD_US = 20_000
LEAST_QUOTA_US = 1_000  # the kernel's limit
ROOT = Path("/sys/fs/cgroup")


@cache
def base() -> Path:
    """The folder for groups. Raises: MissingPartError: the machine has no control groups that limit CPU time."""
    controllers = ROOT / "cgroup.controllers"
    if controllers.is_file() and "cpu" in controllers.read_text().split():
        with contextlib.suppress(OSError):  # it may be enabled already, or we may lack permission
            (ROOT / "cgroup.subtree_control").write_text("+cpu")
        if "cpu" in (ROOT / "cgroup.subtree_control").read_text().split():
            return ROOT
    for name in ("cpu", "cpu,cpuacct"):
        if (ROOT / name / "cpu.cfs_quota_us").exists() or (ROOT / name / "cpu.shares").exists():
            return ROOT / name
    raise MissingPartError(
        f"CPU-limited hosts need control groups with the cpu controller below {ROOT}: mount them, or leave out "
        "job.cpu_share and straggler.by"
    )


class CpuGroup:
    """A control group: its processes together may use a share of one core."""

    def __init__(self, name: str) -> None:
        """Makes the group. Raises: MissingPartError, SaAtpError."""
        # the name tells later whether the owner still lives
        self.folder = base() / f"{PREFIX}{os.getpid()}-{name}"
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise SaAtpError(f"{self.folder}: {error.strerror}") from None

    def limit(self, share: float | None) -> None:
        """Sets the limit. Args: share: of one core, as 0.25 for a quarter; None: no limit. Raises: SaAtpError."""
        period_us = PERIOD_US
        quota_us = -1 if share is None else round(share * period_us)
        if share is not None and quota_us < LEAST_QUOTA_US:
            quota_us, period_us = LEAST_QUOTA_US, round(LEAST_QUOTA_US / share)
        try:
            if (self.folder / "cpu.max").exists():
                (self.folder / "cpu.max").write_text(f"{'max' if share is None else quota_us} {period_us}")
            else:
                (self.folder / "cpu.cfs_period_us").write_text(str(period_us))
                (self.folder / "cpu.cfs_quota_us").write_text(str(quota_us))
        except OSError as error:
            raise SaAtpError(f"{self.folder}: the kernel refuses a CPU quota: {error.strerror}") from None

    def inside(self) -> list[str]:
        """The prefix of a command that runs it in the group."""
        return ["sh", "-c", f'echo $$ > {self.folder}/cgroup.procs && exec "$@"', "sh"]

    def remove(self) -> None:
        """Removes the group. Call it after its processes have ended; it waits a moment for the kernel to notice."""
        for _ in range(50):
            try:
                self.folder.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.02)
