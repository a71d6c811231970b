"""Options common to benchmarks of an all-reduce: number of ranks, size of the tensor, iterations."""

import argparse

from sa_atp.basics.errors import UserError
from sa_atp.protocol.packets.spec import MOST_RANKS


def tensor_bytes(options: argparse.Namespace) -> int:
    """Size of the float32 tensor, bytes. Args: options: with workers, mbytes and iterations. Raises: UserError."""
    if not 2 <= options.workers <= MOST_RANKS:
        raise UserError(f"--workers {options.workers}: expected 2 to {MOST_RANKS}")
    if not 4e-6 <= options.mbytes <= 4000:
        raise UserError(f"--mbytes {options.mbytes}: expected 0.000004 (one value) to 4000")
    if options.iterations < 1:
        raise UserError(f"--iterations {options.iterations}: expected at least 1")
    return int(max(1, round(options.mbytes * 1e6 / 4)) * 4)
