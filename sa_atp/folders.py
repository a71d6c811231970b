"""Where things are kept that are not part of a run."""

import os
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """Where compiled pipelines are kept between runs: $SA_ATP_CACHE, or sa_atp below the user's cache folder."""
    chosen = os.environ.get("SA_ATP_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    folder = Path(chosen) if chosen else (Path(base) if base else Path.home() / ".cache") / "sa_atp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        fallback = Path(tempfile.gettempdir()) / f"sa_atp-{os.getuid()}"
        fallback.mkdir(mode=0o700, exist_ok=True)
        return fallback
