"""`sa-atp dissect`: the SA-ATP packets of a capture, one line each."""

import argparse
import sys
from pathlib import Path
from typing import Any

from sa_atp.basics.words import plural


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "dissect",
        help="print the SA-ATP packets of a capture",
        description="Prints the SA-ATP packets of a pcap or pcapng file, one line each: seconds since the first packet, "
        "source and destination, kind, job, epoch, sequence number, slot, contributions, flags, and a summary of the "
        "lanes. Exit status 1: the file is cut off in the middle of a packet.",
    )
    parser.add_argument(
        "file", type=Path, metavar="FILE.pcap", help="for example what `sa-atp switch --pcap` has written"
    )
    parser.add_argument("--job", type=int, metavar="N", help="only packets of this job")
    parser.add_argument("--absolute", action="store_true", help="times since 1970 instead of since the first packet")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    import logging

    for logger in ("scapy.loading", "scapy.runtime"):  # the exit status tells of broken files
        logging.getLogger(logger).setLevel(logging.ERROR)
    from sa_atp.basics.errors import UserError
    from sa_atp.basics.waiting import nothing_waited_for
    from sa_atp.net.captures.dissect import CaptureCounts, read
    from sa_atp.protocol.packets.spec import JOBS

    if options.job is not None and not 0 <= options.job < JOBS:
        raise UserError(f"--job {options.job}: expected 0 to {JOBS - 1}")
    logging.getLogger("scapy").setLevel(
        logging.ERROR
    )  # its warnings about broken files; the exit status tells of those
    counts = CaptureCounts()
    origin_s: float | None = 0.0 if options.absolute else None
    with nothing_waited_for():  # a pipe may have no packet for long
        for found in read(options.file, counts):
            if origin_s is None:
                origin_s = found.time_s
            if options.job is None or found.job == options.job:
                print(found.line(origin_s))
    sys.stdout.flush()
    found_in_all = f"{plural(counts.packets, 'SA-ATP packet')}, {counts.malformed} malformed"
    print(f"sa-atp dissect: {found_in_all}, {plural(counts.others, 'other')}", file=sys.stderr)
    if counts.cut:
        print(f"sa-atp dissect: {options.file} ends in the middle of a packet", file=sys.stderr)
    return 1 if counts.cut else 0
