"""Rules of help that can be switched off, to see what each is worth: `sa-atp bench help --ablate`.

A rule is declared beside the functions that follow it: `@COPIES.or_else(None)` before one of them says what it returns
while the rule is off. Switched off are rules for a benchmark alone, and for a whole process.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
RULES: dict[str, "Rule"] = {}
"""By name."""


@dataclass(slots=True)
class Rule:
    """A rule of help."""

    name: str
    says: str
    """What it does, as a sentence."""
    is_on: bool = True

    def __post_init__(self) -> None:
        RULES[self.name] = self

    def or_else(self, value: Any) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Marks a function that follows the rule. Args: value: what it returns while the rule is off."""

        def mark(follow: Callable[P, T]) -> Callable[P, T]:
            @wraps(follow)
            def decided(*args: P.args, **options: P.kwargs) -> T:
                found: T = follow(*args, **options) if self.is_on else value
                return found

            return decided

        return mark
