"""Every collective of the process-group backend beside the same worked out in one process: types, sizes, layouts."""

import re
from typing import Any

import pytest
from collective_scenarios import COLLECTIVES, Case, expected
from rank_pool import GPU, Ranks

MODULE = "collective_scenarios"
RANKS = 3
REDUCING = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor")
FLOATS = ("float32", "float16", "bfloat16", "float64")
WHOLE = ("int8", "uint8", "int32", "int64")
SIZES = (0, 1, 4, 12)  # the last in the switch, where it is a sum


def answers(ranks: Ranks, cases: list[Case], **settings: Any) -> list[list[dict[str, Any]]]:
    """What each rank got, case by case."""
    found = ranks.run("answers", RANKS, module=MODULE, backend="sa_atp", cases=cases, **settings)
    return [list(of_case) for of_case in zip(*found, strict=True)]


def assert_right(ranks: Ranks, cases: list[Case]) -> None:
    for case, found in zip(cases, answers(ranks, cases), strict=True):
        for rank, answer in enumerate(found):
            right = expected(case, rank, RANKS)
            assert answer.keys() == right.keys(), (case, rank, answer)
            for mine, theirs in zip(answer["values"], right["values"], strict=True):
                assert mine[:2] == theirs[:2], (case, rank)
                values = [pytest.approx(values, rel=0.02 if "float16" in mine[0] else 1e-6) for values in theirs[2:]]
                assert mine[2:] == values, (case, rank)


def test_sizes_and_types(ranks: Ranks) -> None:
    cases: list[Case] = [{"call": call, "size": size} for call in COLLECTIVES for size in SIZES]
    cases += [
        {"call": call, "dtype": kind}
        for call in COLLECTIVES
        for kind in (*FLOATS, *WHOLE, "bool")
        if kind != "bool" or call not in (*REDUCING, "all_reduce, later", "coalesced")
    ]
    assert_right(ranks, cases)


@pytest.mark.parametrize("layout", ["strided", "transposed", "offset", "negative", "leaf", "meta"])
def test_layouts(ranks: Ranks, layout: str) -> None:
    """How a tensor lies in memory changes nothing. Point to point, Gloo refuses what is not contiguous."""
    passed_over = {"send and recv"} if layout in ("strided", "transposed", "negative") else set()
    if layout == "meta":
        passed_over = {"coalesced"}  # PyTorch has no such operator for it
    if layout == "transposed":
        passed_over |= {"reduce_scatter_tensor", "all_to_all_single with splits"}  # by rows: other sizes
    assert_right(
        ranks, [{"call": c, "layout": layout, "size": s} for c in COLLECTIVES if c not in passed_over for s in (4, 12)]
    )


def test_reductions_of_every_type(ranks: Ranks) -> None:
    """The mean of whole numbers is a whole number, rounded towards zero."""
    kinds = {
        ("SUM", "AVG", "MAX", "MIN", "PRODUCT"): (*FLOATS, *WHOLE),
        ("PREMUL_SUM",): FLOATS,
        ("BAND", "BOR", "BXOR"): WHOLE,
    }
    cases: list[Case] = [
        {"call": call, "op": op, "dtype": kind, "size": size, "signed": kind != "uint8"}
        for call in REDUCING
        for ops, of_kind in kinds.items()
        for op in ops
        for kind in of_kind
        for size in (4, 12)
    ]
    cases += [{"call": "all_reduce", "op": op, "dtype": "complex64", "size": 12} for op in ("SUM", "AVG")]
    assert_right(ranks, cases)


@GPU
def test_tensors_on_a_gpu(ranks: Ranks) -> None:
    calls = [
        *(("all_reduce", op) for op in ("SUM", "AVG", "MAX")),
        ("reduce_scatter_tensor", "SUM"),
        ("broadcast", "SUM"),
    ]
    assert_right(ranks, [{"call": c, "op": op, "size": 1000, "root": 1, "device": "cuda"} for c, op in calls])


def test_parts_of_unequal_length(ranks: Ranks) -> None:
    sizes = ([300, 2, 40], [4, 12, 8], [12, 12, 0], [0, 0, 5], [1, 1, 1], [0, 0, 0])
    assert_right(
        ranks, [{"call": "reduce_scatter", "sizes": list(s), "op": op} for s in sizes for op in ("SUM", "AVG", "MAX")]
    )


def test_parts_that_ranks_believe_differently_of(ranks: Ranks) -> None:
    for said in ranks.run("parts_that_differ", RANKS, module=MODULE, backend="sa_atp"):
        assert "disagree about what they sum: operation 0 has another key or scale" in said


REFUSED: list[tuple[Case, str]] = [
    ({"call": "reduce_scatter", "off_by": 1}, "of a part of 12 values of torch.float32 for rank R into 13"),
    ({"call": "reduce_scatter", "out_dtype": "float64"}, "different dtypes"),
    ({"call": "reduce_scatter", "missing": 1}, "reduce_scatter of 2 parts: expected 3, one for each rank"),
    ({"call": "reduce_scatter_tensor", "off_by": -1}, "of 36 values of torch.float32 into 11 .* expected 33"),
    ({"call": "reduce_scatter_tensor", "out_dtype": "float64"}, "expected 36 of torch.float64"),
    ({"call": "all_gather", "off_by": 1}, "expected .12., got .13."),
    ({"call": "all_gather", "missing": 1}, "expected length 3, got 2"),
    ({"call": "all_gather_into_tensor", "off_by": 1}, "expected .12., got .13."),
    ({"call": "all_to_all_single", "off_by": 1}, "size"),
    ({"call": "all_to_all", "off_by": 1}, "must have the same size"),
    *[({"call": call, "layout": "expanded"}, "whose values share memory, cannot receive") for call in
      ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "broadcast", "all_gather",
       "all_gather_into_tensor", "all_to_all", "all_to_all_single", "coalesced")],
    *[({"call": call, "layout": "sparse"}, "a sparse_coo float32 tensor on cpu in a collective: expected") for call in
      ("reduce", "reduce_scatter", "reduce_scatter_tensor", "broadcast", "all_gather", "all_gather_into_tensor",
       "all_to_all", "all_to_all_single")],
    *[({"call": call, "layout": "nested"}, "a nested float32 tensor on cpu in a collective: expected a dense") for call in
      ("all_reduce", "reduce", "broadcast")],
    *[({"call": call, "dtype": "int16"}, "Gloo, which does this, has no torch.int16: expected one of float16") for call in
      ("all_reduce", "reduce", "reduce_scatter_tensor", "broadcast", "all_to_all_single")],
    ({"call": "all_reduce", "op": "AVG", "dtype": "bool"}, "bool tensors have no mean"),
    ({"call": "reduce", "op": "AVG", "dtype": "bool"}, "bool tensors have no mean"),
    ({"call": "all_reduce", "op": "PREMUL_SUM", "dtype": "int64"}, "PREMUL_SUM of torch.int64 tensors: expected a float"),
    ({"call": "all_reduce", "op": "BAND"}, "BAND with non-integral"),
    ({"call": "all_reduce", "op": "MAX", "dtype": "complex64"}, "does not support"),
]  # fmt: skip


def test_impossible_collectives_fail_with_one_line(ranks: Ranks) -> None:
    cases = [case for case, _ in REFUSED] + [{"call": "all_reduce"}]  # after all that, sums are as before
    *refused, last = answers(ranks, cases)
    for (case, said), found in zip(REFUSED, refused, strict=True):
        for rank, answer in enumerate(found):
            assert "error" in answer, (case, answer)
            text = answer["error"].strip()
            assert re.search(said.replace("R", str(rank)) if "rank R" in said else said, text), (case, text)
            assert "\n" not in text, text
    assert all(answer == expected({"call": "all_reduce"}, 0, RANKS) for answer in last)


def test_a_pending_sign_is_refused_point_to_point(ranks: Ranks) -> None:
    (found,) = answers(ranks, [{"call": "send and recv", "layout": "negative"}])
    assert all("resolve_neg" in answer["error"] for answer in found[:2])


def test_sums_of_sparse_tensors_go_through_gloo(ranks: Ranks) -> None:
    assert_right(ranks, [{"call": "all_reduce", "layout": "sparse", "size": size} for size in (4, 12)])
