"""The commit in a run's manifest is that of the checkout, even for another user."""

import subprocess
from pathlib import Path

import pytest

from sa_atp.basics.checkout import commit_of


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    root.mkdir()
    (root / "file").write_text("one\n")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "one")
    return root


def git(root: Path, *arguments: str) -> str:
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@localhost"]
    done = subprocess.run(["git", *who, "-C", root, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.needs("git")
def test_the_commit_and_whether_there_are_changes(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    assert commit_of(repository) == commit
    (repository / "file").write_text("two\n")
    assert commit_of(repository) == f"{commit}+changes"


@pytest.mark.needs("git")
def test_a_checkout_of_another_user(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for root in a user's checkout, which git itself refuses to read."""
    commit = git(repository, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(subprocess.CalledProcessError):
        git(repository, "rev-parse", "HEAD")
    assert commit_of(repository) == commit


@pytest.mark.needs("git")
def test_outside_of_a_repository_there_is_none(repository: Path, tmp_path: Path) -> None:
    assert commit_of(tmp_path) is None
    (repository / "below").mkdir()
    assert commit_of(repository / "below") is None  # some other project's
