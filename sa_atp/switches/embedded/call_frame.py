"""The call frame of a translated program: one block of words with numbers, and addresses and sizes of arrays.

So a call costs the same for any number of tables and registers, and compiled code can make it without Python. A call frame
has nothing to do with Ethernet frames.
"""

from typing import Any

import numpy as np

from sa_atp.basics.arrays import AnyIntegers
from sa_atp.switches.embedded.translate.expressions import FIXED_ARGUMENTS, FRAME_WORDS

PLACES = {name: FRAME_WORDS * i for i, (name, _) in enumerate(FIXED_ARGUMENTS)}
"""Index of the first word of each fixed argument."""


class CallFrame:
    """Words (int64) for each argument: a number, or address, rows and columns of an array. It keeps the arrays alive."""

    def __init__(self, arguments: int, *, compiled: bool) -> None:
        """Args: arguments: their number, the fixed ones included."""
        self.words = np.zeros(FRAME_WORDS * arguments, np.int64)
        self.objects: list[Any] = [0] * (FRAME_WORDS * arguments)
        self.address: int = self.words.ctypes.data
        self.version = 0  # of the pipeline's state that the frame describes
        self.own: dict[tuple[str, str], AnyIntegers] = {}
        """Arguments that belong to this frame alone, by kind and name."""
        self._compiled = compiled

    @property
    def handle(self) -> Any:
        """The argument of `process`."""
        return self.address if self._compiled else self.objects

    def number(self, place: int, value: int) -> None:
        self.words[place] = self.objects[place] = value

    def array(self, place: int, array: AnyIntegers) -> None:
        if self.objects[place] is array:
            return
        if not array.flags.c_contiguous:
            raise TypeError("a translated program takes contiguous arrays")
        words = self.words
        words[place] = array.__array_interface__["data"][0]
        words[place + 1] = len(array)
        words[place + 2] = array.shape[1] if array.ndim == 2 else 1
        self.objects[place] = array

    def result(self, place: int) -> int:
        return int(self.words[place] if self._compiled else self.objects[place])
