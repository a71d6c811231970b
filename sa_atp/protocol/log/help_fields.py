"""Reports and assignments as fields of events: a rank and the parameter server log the same."""

from typing import Any, Literal

from sa_atp.protocol.packets.help_messages import Assignment, WorkReport


def of_report(said: WorkReport) -> dict[str, Any]:
    """Returns the fields begun and held; of an offer busy_us and missing, too."""
    own = {"begun": said.begun, "held": said.held}
    return own if said.offer is None else own | {"busy_us": said.offer.busy_us, "missing": hex(said.offer.missing)}


def of_assignment(told: Assignment | None) -> dict[str, Any]:
    """Returns the fields until, over, revokes, work, copies and again_us, as far as something is assigned."""
    if told is None:
        return {}
    own = {"until": told.until, "over": told.over, "revokes": told.revokes, "again_us": told.again_us}
    return own | {name: hex(bits) for name in ("work", "copies") if (bits := getattr(told, name))}


def kind(said: WorkReport) -> Literal["claim", "offer", "idle"]:
    """Returns whether the sender offers to help (offer), is done with its own shard (idle), or neither (claim)."""
    if said.offer is not None:
        return "offer"
    return "idle" if said.done else "claim"
