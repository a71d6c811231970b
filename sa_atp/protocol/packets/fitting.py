"""Shortens answers to the length of their questions, so that a forged question is not amplified. (protocol section 9.1)"""

import msgspec
from msgspec.structs import replace

from sa_atp.protocol.packets.control import Failure, Refused, Reply, Waiting, plain
from sa_atp.protocol.packets.lateness_messages import JobLateness
from sa_atp.protocol.packets.spec import HEADER_BYTES


def fitted(reply: Reply, room: int) -> Reply | None:
    """An answer cut to `room` bytes, header included: texts for people are cut first, then lists.

    Returns: None: it cannot be cut enough.
    """
    too_many = HEADER_BYTES + len(msgspec.json.encode(reply)) - room
    if too_many <= 0:
        return reply
    match reply:
        case Refused(reason=text) if text:
            return fitted(replace(reply, reason=_cut(text, too_many)), room)
        case Failure(detail=text) if text:
            return fitted(replace(reply, detail=_cut(text, too_many)), room)
        case Failure() if reply != Failure(reason=reply.reason):
            return fitted(Failure(reason=reply.reason), room)
        case Waiting(refusal=str(text)):
            return fitted(replace(reply, refusal=_cut(text, too_many) or None), room)
        case Waiting(differs=str(text)):
            return fitted(replace(reply, differs=_cut(text, too_many) or None), room)
        case Waiting(missing=[*first, _]):
            return fitted(replace(reply, missing=first), room)
        case JobLateness(ranks=[*first, _]):
            return fitted(replace(reply, ranks=first), room)
    return None


def _cut(text: str, too_many: int) -> str:
    """A text without its last `too_many` bytes of JSON."""
    return plain(text, max(0, len(msgspec.json.encode(text)) - 2 - too_many))
