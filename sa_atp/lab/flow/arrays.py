"""Types of arrays with an entry for each link, flow or stream; docstrings say their shapes."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
