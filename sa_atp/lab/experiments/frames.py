"""Records as a table of pandas, which is imported where somebody asks for one."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from sa_atp.basics import needs


def frame(kind: type, records: Iterable[Any]) -> Any:
    """A DataFrame with a row a record. Args: kind: of the records, a dataclass. Raises: MissingPartError."""
    needs.require_modules("to_pandas needs", "pandas")
    import pandas as pd

    names = [field.name for field in dataclasses.fields(kind)]
    return pd.DataFrame([[getattr(record, name) for name in names] for record in records], columns=names)
