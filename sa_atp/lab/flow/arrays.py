"""Types of arrays that have a number for each link, flow or stream; shapes are said where they are used."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
