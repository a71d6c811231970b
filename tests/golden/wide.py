"""Scenarios of a build whose bitmap has more than 64 bits: every word of it counts, and control messages have one only."""

import dataclasses

from .packets import CONTROL, DATA, FAN_OUT, ON_BEHALF, PROBE, PROBE_REPLY, RESEND, Header, Packet
from .scenario import ECT0, Scenario, host
from .sites import LEAF, SERVER, SHORT_TICKS, TWO, W0, W1

LANES, CONTRIBUTIONS = 256, 512
WORDS = CONTRIBUTIONS // 64
FAN_IN = sum(0b1001 << 64 * word for word in range(WORDS))  # contributions 0 and 3 of each word
FIRST, LAST = 1, 0b1000 << 64 * (WORDS - 1)
JOB = dataclasses.replace(TWO, fan_in=FAN_IN)


def scenario(name: str, about: str, **changes: object) -> Scenario:
    """Of the wide build, with the job, unless `changes` say otherwise."""
    settings = {"lanes": LANES, "contributions": CONTRIBUTIONS, "jobs": [JOB], **changes}
    return Scenario(name, about, **settings)  # type: ignore[arg-type]


def wide_bits() -> Scenario:
    """What is added, known, refused and asked, by contributions in each word."""
    s = scenario("wide_bits", "Contributions 0 to 511: each word of the bitmap counts.")
    s.data(W0, JOB, "claimed", "the first contribution", bits=FIRST)
    for word in range(1, WORDS):
        s.data(W1, JOB, "added", f"contribution {64 * word}", bits=1 << 64 * word)
        s.data(W0, JOB, "duplicate", f"contribution {64 * word} again", bits=1 << 64 * word)
        s.data(W0, JOB, "duplicate", f"it and contribution {64 * word + 3}", seq=0, bits=0b1001 << 64 * word)
        s.data(W0, JOB, "passed up", f"contribution {64 * word + 1} is not of this job", bits=2 << 64 * word)
        s.probe(W0, JOB, "probed", "the slot tells what it has")
    s.comment("Contributions that were offered in vain are refused until a resend has the slot handed over.")
    s.data(W1, JOB, "handed over", "what the slot has goes on", bits=LAST, flags=RESEND)

    s.comment("A fragment whose contributions come word by word, and one of which all but the last come at once.")
    for word in range(WORDS):
        what = "claimed" if word == 0 else "completed" if word == WORDS - 1 else "added"
        s.data(W0, JOB, what, f"both contributions of word {word}", seq=1, slot=257, bits=0b1001 << 64 * word)
    s.data(W1, JOB, "answered", "one that is in it", seq=1, slot=257, bits=LAST)
    s.data(W1, JOB, "claimed", "all but the last", seq=2, slot=258, bits=FAN_IN & ~LAST, flags=ON_BEHALF)
    s.probe(W1, JOB, "probed", "all but the last", seq=2, slot=258)
    s.data(W0, JOB, "completed", "the last", seq=2, slot=258, bits=LAST)
    s.data(W0, JOB, "completed", "all at once", seq=3, slot=259, bits=FAN_IN)
    s.result(JOB, "fanned out", "a result with all bits", seq=4, slot=260)
    s.check_counters()
    return s


def wide_slots() -> Scenario:
    """What leaves a slot by an eviction, a collision, a hand-over and a leaf, with its whole bitmap."""
    short = dataclasses.replace(JOB, ttl_ticks=SHORT_TICKS)
    leaf = dataclasses.replace(LEAF, job=4, group=31, fan_in=FAN_IN & ~LAST)
    s = scenario("wide_slots", "What leaves a slot has all words of its bitmap.", jobs=[short, leaf])
    s.data(W0, short, "claimed", "contributions of all words but the last", seq=1, bits=FAN_IN & ~LAST)
    s.data(W1, short, "collision", "another fragment", seq=257, bits=LAST)
    s.wait("The sum has been idle for too long.")
    s.data(W1, short, "evicted", "another fragment takes the slot", seq=257, bits=LAST)
    s.data(W0, short, "added", "it goes on", seq=257, bits=FIRST)
    s.data(W0, short, "handed over", "a resend adds, and hands over", seq=257, bits=1 << 64, flags=RESEND)
    s.data(W0, short, "passed up", "the next one finds nothing", seq=257, bits=1 << 64, flags=RESEND)
    s.comment("At a leaf, whose part of the fan-in is all but the last contribution.")
    s.data(W0, leaf, "claimed", "the first", seq=5, bits=FIRST)
    s.data(W1, leaf, "passed up", "the last is summed above", seq=5, bits=LAST)
    s.data(W1, leaf, "completed", "the rest goes up as one packet", seq=5, bits=FAN_IN & ~LAST & ~FIRST)
    s.check_counters()
    return s


def wide_lengths() -> Scenario:
    """Headers that are cut short, or are those of the build of 64."""
    s = scenario(
        "wide_lengths",
        "Control messages have a header with one word, everything else has all words of the bitmap.",
        routes=[("10.0.0.100/32", 9), ("10.0.0.1/32", 1)],
    )
    zero, server = host(W0), host(SERVER)
    body = b'{"type":"stats"}'
    control = Packet(zero, server, sa=Header(kind=CONTROL, seq=1), payload=body, tos=ECT0, udp_checksum=0xBEEF)
    s.send(1, control, None, "a control message is bridged, however short")
    s.send(1, control.having(payload=b""), None, "and one without a body")
    reply = Header(kind=PROBE_REPLY, job=3, epoch=2, bits=LAST, contributions=CONTRIBUTIONS)
    s.send(9, Packet(server, zero, sa=reply), None, "an answer is bridged")
    good = s.packet_of(W0, JOB, DATA, seq=1, bits=FIRST, lanes=s.values(lambda k: k + 1))
    s.send(1, good.having(contributions=64), "malformed", "data with a bitmap of 64 bits")
    s.send(1, good.having(cut=1), "malformed", "a byte of the last lane is missing")
    s.send(1, good.having(cut=4 * LANES + 1), "malformed", "a byte of the bitmap is missing, and all lanes")
    probe = s.packet_of(W0, JOB, PROBE, seq=1)
    s.send(1, probe.having(contributions=64), "malformed", "a probe with a bitmap of 64 bits")
    s.send(1, probe.having(cut=1), "malformed", "a byte of a probe's bitmap is missing")
    s.send(1, probe.having(cut=1, udp_bytes=8 + 76), "malformed", "and the UDP length counts it")
    s.send(1, probe.having(cut=57, udp_bytes=8 + 76), "malformed", "19 bytes of 76")
    s.send(9, s.packet_of(SERVER, JOB, 2, seq=1, bits=FAN_IN, flags=FAN_OUT), "malformed", "a result without lanes")
    s.send(1, good, "claimed", "data as it should be")
    s.check_counters()
    return s
