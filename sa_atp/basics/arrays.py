"""What arrays hold, as types: the element is in the type, the shape in the line below it. (terms: protocol section 1.1)

A name stands for one use of a type, so several are the same to a type checker: it tells a bitmap from a length, and a
reader tells a length from a number of frames.
"""

import numpy as np
from numpy.typing import NDArray

# --- values and what becomes of them --------------------------------------------------------------------------------------

Values = NDArray[np.float32]
"""float32[values]: a tensor laid flat, such as a gradient, a contribution or a sum."""
Integers = NDArray[np.int32]
"""int32[values]: quantised values or their sums, in units of 2**-exponent."""
Lanes = NDArray[np.int32]
"""int32[fragments, lanes], or int32[lanes] of one: the same by fragments; big-endian where they are a view of packets."""
Exponents = NDArray[np.int8 | np.int16]
"""int8[fragments] as headers have them; int16[chunks] where one may not be known yet."""

# --- fragments ----------------------------------------------------------------------------------------------------------

Seqs = NDArray[np.integer]
"""int64[fragments], or big-endian uint32[fragments] as headers have them: numbers within the job, modulo 2**32."""
Bitmaps = NDArray[np.uint64]
"""uint64[fragments, words]: the contributions to each, 64 of them a word; big-endian where they are a view of packets."""
Mask = NDArray[np.bool_]
"""bool[n]: which of n fragments, packets or values something is true of."""

# --- packets ------------------------------------------------------------------------------------------------------------

ByteRows = NDArray[np.uint8]
"""uint8[n, bytes]: a batch of packets, frames or payloads, one a row."""
Headers = NDArray[np.void]
"""A structured array[n]: headers by their fields, of the type that is named where they are read."""
Octets = NDArray[np.uint8]
"""uint8[n]: bytes one behind the other, or for each of n things a number that fits in a byte."""
Lengths = NDArray[np.int64]
"""int64[n]: bytes of each packet, frame or payload."""

# --- numbers ------------------------------------------------------------------------------------------------------------

Indices = NDArray[np.int64]
"""int64[n]: numbers that name things: rows of a batch, fragments, lanes, places in data, ports of a switch."""
Counts = NDArray[np.int64]
"""int64[n]: how many there are for each of n."""
Numbers = NDArray[np.int64]
"""int64[...]: narrower numbers, such as fields of headers, in a type whose arithmetic does not wrap."""
Words = NDArray[np.uint64]
"""uint64[...]: addresses in memory, cells of tables and counters, and what is packed into 64 bits."""
Cells = NDArray[np.unsignedinteger]
"""uint8[...] to uint64[...]: registers of a P4 program, as wide as it declares them."""
Measurements = NDArray[np.float64]
"""float64[n]: seconds, losses and the like, one for each step or point."""

AnyIntegers = NDArray[np.integer]
"""Integers of any shape and width, with sign or without."""
