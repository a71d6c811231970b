"""The option --lanes of all commands that choose a build of the program: a number, or the most that the path carries."""

import argparse

from sa_atp.protocol.packets.spec import LANE_BUILDS


def add(parser: argparse.ArgumentParser, by: str) -> None:
    """Adds the option; its value is None for auto, the default. Args: by: what auto's choice has to fit, for --help."""
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
