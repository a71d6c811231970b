"""Pages in a real browser, Chromium, without any network. Tests that use it are marked `@browser.NEEDED`."""

import subprocess
from pathlib import Path

import pytest

NEEDED = pytest.mark.needs("chromium")
WAIT_S = 120.0


def dom(page: Path, folder: Path, *, query: str = "", width: int = 1400, patience_ms: int = 10_000) -> str:
    """The page as HTML, after its scripts have run.

    Args: folder: for the browser's own files; query: after the "?" of the address; patience_ms: of the page's own time.
    """
    command = [
        "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={folder}",
        "--host-resolver-rules=MAP * ~NOTFOUND", "--allow-file-access-from-files", f"--window-size={width},900",
        f"--virtual-time-budget={patience_ms}", "--dump-dom", page.resolve().as_uri() + (f"?{query}" if query else ""),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
