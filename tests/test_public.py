"""What the package shows of itself."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module", ["sa_atp", pytest.param("sa_atp.train", marks=pytest.mark.needs("torch"))]
)  # which load the rest when it is used
def test_dir_shows_what_is_public(module: str) -> None:
    """In a process of its own, where nothing has been used yet."""
    program = (
        f"import {module} as m\n"
        "shown = dir(m)\n"
        "assert set(shown) - {'__version__'} == set(m.__all__), shown\n"
        "assert all(getattr(m, name) is not None for name in shown)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
