"""Types of arrays by their use: the type has the element, the line below it the shape. (terms: protocol section 1.1)

Several names may be the same type to a type checker: it tells a bitmap from a length, and a reader tells a length from
a count.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

# --- values and what becomes of them
# --------------------------------------------------------------------------------------

Values = NDArray[np.float32]
"""float32[values]: a flattened tensor, such as a gradient, a contribution or a sum."""
Integers = NDArray[np.int32]
"""int32[values]: quantised values or their sums, in units of 2**-exponent."""
Addends = NDArray[Any]
"""float32[values], or int32[values] where whole numbers are summed: contributions and their sum."""
Lanes = NDArray[np.int32]
"""int32[fragments, lanes], or int32[lanes] of one fragment; big-endian in views of packets."""
Exponents = NDArray[np.int8 | np.int16]
"""int8[fragments] as in headers; int16[chunks] where an exponent may be unknown yet."""

# --- fragments
# ----------------------------------------------------------------------------------------------------------

Seqs = NDArray[np.integer]
"""int64[fragments], or big-endian uint32[fragments] as in headers: numbers within the job, modulo 2**32."""
Bitmaps = NDArray[np.uint64]
"""uint64[fragments, words]: contributions to each, 64 in a word; big-endian in views of packets."""
Mask = NDArray[np.bool_]
"""bool[n]: a predicate on each of n fragments, packets or values."""

# --- packets
# ------------------------------------------------------------------------------------------------------------

ByteRows = NDArray[np.uint8]
"""uint8[n, bytes]: a batch of packets, frames or payloads, one in each row."""
Headers = NDArray[np.void]
"""Structured array[n]: headers with the fields of a type that is named where they are read."""
Octets = NDArray[np.uint8]
"""uint8[n]: consecutive bytes, or n numbers that each fit in a byte."""
Lengths = NDArray[np.int64]
"""int64[n]: bytes of each packet, frame or payload."""

# --- numbers
# ------------------------------------------------------------------------------------------------------------

Indices = NDArray[np.int64]
"""int64[n]: numbers that name rows of a batch, fragments, lanes, positions in data, ports of a switch."""
Counts = NDArray[np.int64]
"""int64[n]: n counts."""
Numbers = NDArray[np.int64]
"""int64[...]: narrower numbers, such as header fields, widened so that arithmetic does not wrap."""
Words = NDArray[np.uint64]
"""uint64[...]: addresses in memory, cells of tables and counters, values packed into 64 bits."""
Cells = NDArray[np.unsignedinteger]
"""uint8[...] to uint64[...]: registers of a P4 program, as wide as it declares them."""
Measurements = NDArray[np.float64]
"""float64[n]: seconds, losses and the like, one for each step or point."""

AnyIntegers = NDArray[np.integer]
"""Integers of any shape and width, signed or unsigned."""
