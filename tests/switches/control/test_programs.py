"""The compiled test programs were made from the sources beside them."""

import importlib.util
from types import ModuleType

import pytest

from .conftest import P4


def compiler() -> ModuleType:
    spec = importlib.util.spec_from_file_location("p4_compile", P4 / "compile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.needs("p4c-bm2-ss")
@pytest.mark.parametrize("name", compiler().PROGRAMS)
def test_compiled_forms_are_current(name: str) -> None:
    for file, text in compiler().compiled(name).items():
        assert text == (P4 / file).read_text(), f"{file} is out of date: run tests/p4/compile.py"
