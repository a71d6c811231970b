"""SA-ATP: in-network aggregation that survives stragglers.

`connect` joins a job and returns a `Communicator`, whose `all_reduce` sums arrays over all ranks through the switch.
Failures of the job raise `TransportError`; mistakes that a caller can mend, such as in an argument, raise `UserError`.
`experiment` runs plans.
"""

TYPE_CHECKING = False  # importing it from typing takes longer than all of this
if TYPE_CHECKING:
    from typing import Any

    from sa_atp import experiment
    from sa_atp.basics.errors import UserError
    from sa_atp.net.communicator import Communicator
    from sa_atp.net.connecting import connect
    from sa_atp.protocol.job.errors import TransportError

__all__ = ["Communicator", "TransportError", "UserError", "connect", "experiment"]
__version__ = "0.2.0"


def __getattr__(name: str) -> "Any":
    """Loads the transport when it is first used, so that tools that only need a part of the package stay quick."""
    if name == "experiment":
        import importlib

        return importlib.import_module("sa_atp.experiment")
    if name in __all__:
        from sa_atp.net import connecting  # has all of these names

        return getattr(connecting, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return [*__all__, "__version__"]
