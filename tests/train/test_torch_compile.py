"""torch.compile: what is compiled computes the same over the hook, over the backend, and over Gloo."""

from typing import Any

import pytest
from rank_pool import Ranks

MODULE = "compile_scenarios"


@pytest.mark.parametrize(
    ("compiler", "autograd"),
    [("eager", False), ("aot_eager", False), ("eager", True)],
    ids=["forward", "ahead of time", "autograd"],
)
def test_a_compiled_model_learns_what_it_does_without(ranks: Ranks, compiler: str, autograd: bool) -> None:
    expected = ranks.run("ddp", 2, module=MODULE, compiler="")[0]
    options: dict[str, Any] = {"module": MODULE, "compiler": compiler, "autograd": autograd}
    assert ranks.run("ddp", 2, hook=True, **options)[0] == pytest.approx(expected, rel=1e-5)
    assert ranks.run("ddp", 2, backend="sa_atp", **options)[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_collectives_within_compiled_functions(ranks: Ranks, compiler: str) -> None:
    expected = ranks.run("collectives", 2, module=MODULE, compiler=compiler)
    assert ranks.run("collectives", 2, module=MODULE, backend="sa_atp", compiler=compiler) == expected
