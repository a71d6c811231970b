"""Cheap checks of sums: a linear hash of the integers that were added.

With r a fixed random vector of 64-bit words, h(q) = sum(q[i] * r[i]) modulo 2**64 is linear: the hash of a sum is the
sum of the hashes. The hashes of all contributions and of the result are recorded, and compared after the run. A
contribution that is missing, counted twice, or altered in a single bit is found, but for a chance of the order of
2**-32.
"""

from hashlib import blake2b

import numpy as np

from sa_atp.basics.arrays import Addends, Exponents, Integers, Values
from sa_atp.protocol.numbers.fragments import CHUNK_VALUES
from sa_atp.protocol.numbers.quantise import quantise
from sa_atp.protocol.rank.sums.operation import UNKNOWN

MASK64 = (1 << 64) - 1


def of_floats(values: Values) -> int:
    """A hash of float32[n], 64 bits, which is not linear: for sums that depend on the order of addition."""
    return int.from_bytes(blake2b(values.tobytes(), digest_size=8).digest(), "big")


class Fingerprint:
    def __init__(self, values: int) -> None:
        rng = np.random.default_rng(0xF1)
        self._weights = rng.integers(0, 1 << 63, values, dtype=np.uint64) << np.uint64(1) | np.uint64(1)

    def of_integers(self, integers: Integers) -> int:
        """Hash of a sum or a contribution, of at most so many integers as there are values."""
        with np.errstate(over="ignore"):
            return int((integers.astype(np.int64).view(np.uint64) * self._weights[: integers.size]).sum())

    def of_contribution(self, part: Addends, exponents: Exponents, contributions: int) -> int:
        """Hash of a contribution, quantised with these exponents, one for each chunk; whole numbers are as they are."""
        rounded = np.zeros(len(part), np.int32)
        for chunk, exponent in enumerate(exponents.tolist()):
            span = slice(chunk * CHUNK_VALUES, (chunk + 1) * CHUNK_VALUES)
            if exponent != UNKNOWN:
                quantise([part[span]], exponent, contributions, rounded[span])
        return self.of_integers(rounded)
