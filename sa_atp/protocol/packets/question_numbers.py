"""Numbers of probes of a fragment, as a probe and its reply carry them. (protocol section 5.4)"""

from sa_atp.protocol.packets.spec import Flag

# The number travels in flags that have no meaning in a probe, lowest bit first; the reply has the same flags.
_NUMBER_BITS = (Flag.FAN_OUT, Flag.OVERFLOW, Flag.COLLISION, Flag.PARTIAL)
QUESTION_NUMBERS = 1 << len(_NUMBER_BITS)
FLAGS_OF_NUMBER = [
    sum(int(flag) for bit, flag in enumerate(_NUMBER_BITS) if number >> bit & 1) for number in range(QUESTION_NUMBERS)
]
QUESTION_FLAGS = FLAGS_OF_NUMBER[-1]
_NUMBER_OF_FLAGS = {flags: number for number, flags in enumerate(FLAGS_OF_NUMBER)}


def question_number(flags: int) -> int:
    """The number of a probe among those of its fragment. Args: flags: of the probe, or of its reply."""
    return _NUMBER_OF_FLAGS[flags & QUESTION_FLAGS]
