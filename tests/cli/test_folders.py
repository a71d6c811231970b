"""The cache folder for compiled pipelines, with and without a writable home."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sa_atp.basics import folders


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files, and no environment variables that choose a cache."""
    for name in ("SA_ATP_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_the_users_own(temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert folders.cache_folder() == tmp_path / "home" / ".cache" / "sa_atp"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert folders.cache_folder() == tmp_path / "xdg" / "sa_atp"
    monkeypatch.setenv("SA_ATP_CACHE", str(tmp_path / "chosen"))
    assert folders.cache_folder() == tmp_path / "chosen"
    assert (tmp_path / "chosen").stat().st_mode & 0o777 == 0o700
    assert list(temporary.iterdir()) == []


def test_a_home_that_cannot_be_written(temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    wanted = temporary / f"sa_atp-{os.getuid()}"
    assert folders.cache_folder() == wanted
    assert folders.cache_folder() == wanted


@pytest.mark.needs("root")  # to give files away
def test_a_folder_that_somebody_else_has_made(temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/dev/null")
    theirs = temporary / f"sa_atp-{os.getuid()}"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    found = folders.cache_folder()
    assert found != theirs
    assert found.stat().st_uid == os.getuid()


@pytest.mark.needs("root")  # to become another
def test_a_user_without_a_home() -> None:
    """As in a container whose user id has no entry in /etc/passwd."""
    python = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch).chmod(0o777)
        code = Path(scratch) / "folders.py"
        code.write_text(Path(folders.__file__).read_text() + "\nprint(cache_folder())\n")
        somebody = ["setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups"]
        done = subprocess.run(
            [*somebody, "env", "-i", f"TMPDIR={scratch}", python, code],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.stdout, done.stderr) == (f"{scratch}/sa_atp-54321\n", "")
