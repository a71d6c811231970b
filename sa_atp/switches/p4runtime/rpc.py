"""Imports gRPC without its log on standard error: failures are exceptions, whose messages are enough.

A user who sets GRPC_VERBOSITY gets the log. gRPC reads it once, when it is imported; it is not left for child processes.
"""

import os
import re

from sa_atp.basics.errors import UserError

_CHOSEN = bool(os.environ.get("GRPC_VERBOSITY"))
if not _CHOSEN:
    os.environ["GRPC_VERBOSITY"] = "NONE"
import grpc  # noqa: E402

if not _CHOSEN:
    del os.environ["GRPC_VERBOSITY"]

__all__ = ["check_address", "grpc"]


def check_address(text: str, *, lowest_port: int = 1) -> str:
    """Checks HOST:PORT, [IPV6]:PORT or unix:PATH, as gRPC would wrap port 99999. Returns: it. Raises: UserError."""
    match = re.fullmatch(r"(?:[^:/\[\]\s]+|\[[0-9a-fA-F:.%]+\]):(\d{1,5})", text)
    if not text.startswith("unix:") and (match is None or not lowest_port <= int(match[1]) <= 65535):
        raise UserError(f"P4Runtime address {text!r}: expected HOST:PORT, for example 127.0.0.1:9559")
    return text
