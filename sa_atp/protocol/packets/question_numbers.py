"""The number of a question about a fragment, as a probe and its answer carry it. (protocol section 5.4)"""

from sa_atp.protocol.packets.spec import Flag

# A question's number travels in flags that mean nothing in a probe, lowest bit first: what answers leaves them as they are.
_NUMBER_BITS = (Flag.FAN_OUT, Flag.OVERFLOW, Flag.COLLISION, Flag.PARTIAL)
QUESTION_NUMBERS = 1 << len(_NUMBER_BITS)
FLAGS_OF_NUMBER = [
    sum(int(flag) for bit, flag in enumerate(_NUMBER_BITS) if number >> bit & 1) for number in range(QUESTION_NUMBERS)
]
QUESTION_FLAGS = FLAGS_OF_NUMBER[-1]
_NUMBER_OF_FLAGS = {flags: number for number, flags in enumerate(FLAGS_OF_NUMBER)}


def question_number(flags: int) -> int:
    """Which question about its fragment a probe is, or is answered. Args: flags: of the probe, or of the answer."""
    return _NUMBER_OF_FLAGS[flags & QUESTION_FLAGS]
