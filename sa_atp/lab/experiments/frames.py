"""Makes pandas tables of records; pandas is imported only here."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from sa_atp.basics import needs


def frame(kind: type, records: Iterable[Any]) -> Any:
    """Makes a DataFrame with a row for each record. Args: kind: the records' dataclass. Raises: MissingPartError."""
    needs.require_modules("to_pandas needs", "pandas")
    import pandas as pd

    names = [field.name for field in dataclasses.fields(kind)]
    return pd.DataFrame([[getattr(record, name) for name in names] for record in records], columns=names)
