"""Questions and answers about help as fields of events: a rank and the parameter server log the same."""

from typing import Any

from sa_atp.protocol.packets.help_messages import Claim, HelpAnswer, Idle, Offer

QUESTION, ANSWER = ("begun", "held", "busy_us"), ("until", "over", "shard", "micro_batches", "backup", "again_us")


def of_question(question: Claim | Offer | Idle) -> dict[str, Any]:
    """Returns the fields begun, held, busy_us and missing, as far as this kind of question has them."""
    missing = {"missing": hex(question.missing)} if isinstance(question, Offer) else {}
    return {name: getattr(question, name) for name in QUESTION if hasattr(question, name)} | missing


def of_answer(answer: HelpAnswer | None) -> dict[str, Any]:
    """Returns the fields until, over, shard, micro_batches, backup and again_us, as far as this kind of answer has them."""
    return {name: getattr(answer, name) for name in ANSWER if hasattr(answer, name)}


def kind(message: Claim | Offer | Idle | HelpAnswer) -> Any:
    """Returns the kind of a question (claim, offer, idle) or of an answer (granted, work, nothing, noted)."""
    return type(message).__name__.lower()
