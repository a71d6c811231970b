"""--lanes, as all commands have it that choose a build: a number, or by what the path carries."""

import argparse

from sa_atp.protocol.packets.spec import LANE_BUILDS


def add(parser: argparse.ArgumentParser, by: str) -> None:
    """The option: None where it is not given, or auto. Args: by: what auto goes by, for people."""
    parser.add_argument(
        "--lanes",
        type=_lanes,
        metavar="{" + ",".join(map(str, ("auto", *LANE_BUILDS))) + "}",
        help=f"values per packet; auto: the most that fit {by} (default: auto)",
    )


def _lanes(text: str) -> int | None:
    if text == "auto":
        return None
    if text not in map(str, LANE_BUILDS):
        known = ", ".join(map(str, LANE_BUILDS))
        raise argparse.ArgumentTypeError(f"invalid choice: {text!r} (choose from auto, {known})")
    return int(text)
