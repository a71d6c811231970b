"""Python source under construction."""

from collections.abc import Iterator
from contextlib import contextmanager


class Source:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self._depth = 0

    def __call__(self, line: str = "") -> None:
        self.lines.append("    " * self._depth + line if line else "")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """`head` and an indented body; an empty body becomes `pass`."""
        self(head)
        self._depth += 1
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self("pass")
        self._depth -= 1

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"
