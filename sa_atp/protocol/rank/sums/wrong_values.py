"""Exceptions about contributions that cannot be summed, as sums tell it. (protocol sections 6.2 and 6.3)"""


class NotFinite(Exception):
    """Contributions to a chunk hold NaN or infinity."""

    def __init__(self, contributions: list[int], chunk: int) -> None:
        super().__init__()
        self.contributions = contributions
        self.chunk = chunk


class Changed(Exception):
    """Contributions to some values do not fit the magnitudes that were gathered for them."""

    def __init__(self, contributions: list[int], first_value: int, end_value: int) -> None:
        super().__init__()
        self.contributions = contributions
        self.first_value = first_value
        self.end_value = end_value
