"""What torchrun needs, so that ranks which it restarts find each other."""

from collections.abc import Sequence
from itertools import pairwise

OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Set to 1, it has torchrun use a store of its own for each round. The shared one still holds the addresses of dead ranks,
and Gloo would try them (PyTorch issue 135712)."""


def warning(command: Sequence[str]) -> str | None:
    """What a command lacks to come back from a lost rank; None: nothing, or it is not torchrun."""
    if not _is_torchrun(command) or _value(command, "max-restarts") in (None, "0"):
        return None
    if "--standalone" in command or _value(command, "rdzv-backend") not in (None, "static"):
        return None
    nodes = _value(command, "nnodes") or "1"
    is_on_one = nodes.rpartition(":")[2] == "1"
    if is_on_one and _value(command, "master-port") is None and _value(command, "rdzv-endpoint") is None:
        return None  # torchrun takes c10d then
    lacks = "--standalone in place of --master-port" if is_on_one else "--rdzv-backend c10d --rdzv-endpoint HOST:PORT"
    return (
        "--max-restarts: torchrun's rendezvous is static, in which restarted ranks often hang in init_process_group: "
        f"give it {lacks}"
    )


def _is_torchrun(command: Sequence[str]) -> bool:
    named = command[0].rpartition("/")[2] == "torchrun"
    return named or any(
        pair in (("-m", "torch.distributed.run"), ("-m", "torch.distributed.launch")) for pair in pairwise(command)
    )


def _value(command: Sequence[str], option: str) -> str | None:
    """The value of an option of torchrun's, as `--NAME VALUE` or `--NAME=VALUE`; None: it is not given."""
    for word, following in pairwise([*command, ""]):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == f"--{option}":
            return value if equals else following
    return None
