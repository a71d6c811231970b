"""The base of the translator's parts, and a topological order of the nodes of a graph."""

from collections.abc import Callable, Iterable

from sa_atp.switches.embedded.translate.expressions import Translator


class Part:
    """A part of the translation: it writes to the source of the translator."""

    def __init__(self, translator: Translator) -> None:
        self.translator = translator
        self.program = translator.program
        self.usage = translator.usage
        self.layout = translator.layout
        self.out = translator.out
        self.constant = translator.constant


def topological(first: str, following: Callable[[str], Iterable[str | None]]) -> tuple[list[str], str | None]:
    """The nodes of a graph in topological order, and one at which a loop closes; None: there is no loop."""
    order: list[str] = []
    visiting: set[str] = set()
    loop_at: str | None = None

    def visit(name: str) -> None:
        nonlocal loop_at
        if name in visiting:
            loop_at = loop_at if name in order else name
            return
        visiting.add(name)
        for each in following(name):
            if each is not None:
                visit(each)
        order.append(name)

    visit(first)
    return order[::-1], loop_at
