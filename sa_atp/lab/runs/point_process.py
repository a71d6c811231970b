"""Computes points (see points): as a process that reads them from standard input, and as a function for a cluster."""

import contextlib
import importlib
import json
import sys
import threading
import traceback
from typing import Any

from sa_atp.basics.errors import MissingPartError, SaAtpError, UserError

Answer = dict[str, Any]
"""{"result"}, or {"error", "kind"}: the message and the class of an exception."""

_one_at_a_time = threading.Lock()


def answer(work: str, arguments: Any) -> Answer:
    """Computes a point. Args: work: "package.module:function"; arguments: its argument."""
    module, _, function = work.partition(":")
    with _one_at_a_time:
        try:
            return {"result": getattr(importlib.import_module(module), function)(arguments)}
        except SaAtpError as error:
            return {"error": str(error), "kind": type(error).__name__}
        except Exception:
            return {"error": traceback.format_exc(), "kind": "Exception"}


def outcome(answered: Answer, name: str = "") -> Any:
    """The result in an answer. Args: name: with what an error's message begins. Raises: the error in the answer."""
    if "error" not in answered:
        return answered["result"]
    kinds: dict[str, type[SaAtpError]] = {"UserError": UserError, "MissingPartError": MissingPartError}
    raise kinds.get(str(answered.get("kind")), SaAtpError)(f"{name}{answered['error']}")


def main() -> int:
    """Reads a point a line, writes an answer a line. Output of points goes to standard error, which is the log."""
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        for line in sys.stdin:
            point = json.loads(line)
            print(json.dumps(answer(point["work"], point["arguments"])), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
