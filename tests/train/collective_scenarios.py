"""The ranks' programs for comparing every collective with Gloo: one call for each case, whose result is reported.

A case is a dictionary of words and numbers, so that it may travel to the ranks: which collective, and of what tensors. All
ranks make the same calls; values depend on the rank. A case that is wrong is wrong on all ranks, so nobody waits for one
that has given up.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from backend_scenarios import small

Case = dict[str, Any]
FEW = 6  # up to so many values go through Gloo here


def answers(rank: int, world_size: int, *, cases: Sequence[Case]) -> list[dict[str, Any]]:
    """For each case {"values"}, the contents of all tensors that it may have written, or {"error"}, its first line."""
    found: list[dict[str, Any]] = []
    with small(FEW):
        for case in cases:
            try:
                tensors = COLLECTIVES[case["call"]](Call(case, rank, world_size))
                found.append({"values": [_plain(t) for t in tensors]})
            except Exception as error:
                found.append({"error": f"{type(error).__name__}: {error}"})
    return found


def parts_that_differ(rank: int, world_size: int) -> str:
    """Ranks believe differently which part of a sum is how long, and alike how long all are. Returns: the error."""
    lengths = [200, 300, 100] if rank == 1 else [300, 100, 200]
    output = torch.empty(lengths[rank])
    try:
        dist.reduce_scatter(output, [torch.full((length,), float(part)) for part, length in enumerate(lengths)])
    except RuntimeError as error:
        return str(error)
    return f"no error, but {output.unique().tolist()}"


def _plain(tensor: torch.Tensor) -> list[Any]:
    """Its type, its shape, and its values, complex ones as two."""
    shown: list[Any] = [str(tensor.dtype), list(tensor.shape)]
    if tensor.is_meta:
        return shown
    dense = tensor.detach().to_dense().resolve_neg()
    return [*shown, (torch.view_as_real(dense) if dense.is_complex() else dense).reshape(-1).tolist()]


def expected(case: Case, rank: int, world_size: int) -> dict[str, Any]:
    """The result that a rank should get, computed without communication."""
    calls = [Call(case, other, world_size) for other in range(world_size)]
    return {"values": [_plain(t) for t in EXPECTED[case["call"]](calls, rank)]}


class Call:
    """The tensors and options of one case, for one rank."""

    def __init__(self, case: Case, rank: int, world_size: int) -> None:
        self.case, self.rank, self.world_size = case, rank, world_size
        self.kind: torch.dtype = getattr(torch, case.get("dtype", "float32"))
        self.size: int = case.get("size", 12)
        self.root: int = case.get("root", 0)
        self.device: str = case.get("device") or ("meta" if case.get("layout") == "meta" else "cpu")

    @property
    def is_root(self) -> bool:
        return self.rank == self.root

    @property
    def operation(self) -> Any:
        name = self.case.get("op", "SUM")
        if name == "PREMUL_SUM":
            return dist._make_nccl_premul_sum(0.5)
        return getattr(dist.ReduceOp, name)

    def given(self, size: int | None = None, seed: int = 0) -> torch.Tensor:
        """A tensor to send, of small whole numbers in the layout of the case: their sums are exact in every type."""
        return self.laid_out(self._numbers(self.size if size is None else size, seed)).to(self.device)

    def to_fill(self, size: int | None = None) -> torch.Tensor:
        size = self.size if size is None else size
        flat = torch.zeros(max(0, size + self.case.get("off_by", 0)), dtype=self._out_kind)
        return self.laid_out(flat).to(self.device)

    @property
    def _out_kind(self) -> torch.dtype:
        return getattr(torch, self.case["out_dtype"]) if "out_dtype" in self.case else self.kind

    def _numbers(self, size: int, seed: int) -> torch.Tensor:
        numbers = (torch.arange(size) * 7 + 5 * self.rank + 3 * seed) % 11
        if self.case.get("signed"):
            numbers = numbers - 7
        return (numbers % 2 == 0) if self.kind is torch.bool else numbers.to(self.kind)

    def laid_out(self, flat: torch.Tensor) -> torch.Tensor:
        layout = self.case.get("layout", "dense")
        if layout in ("dense", "meta"):
            return flat
        if layout == "strided":
            wide = torch.zeros(2 * flat.numel(), dtype=flat.dtype)
            return wide[::2].copy_(flat)
        if layout == "transposed":
            return flat.reshape(-1, 2).t().contiguous().t() if flat.numel() % 2 == 0 else flat
        if layout == "offset":
            return torch.cat([flat[:1], flat])[1:]
        if layout == "negative":  # what `imag` of a conjugated tensor is: a minus sign that nobody has applied yet
            return torch._neg_view(-flat)
        if layout == "expanded":
            return flat[:1].expand(flat.numel())
        if layout == "leaf":
            return flat.requires_grad_()
        if layout == "sparse":
            return flat.to_sparse()
        if layout == "nested":
            return torch.nested.nested_tensor([flat, flat[1:]])
        raise AssertionError(layout)

    def sizes(self) -> list[int]:
        """Of the parts of each rank."""
        return self.case.get("sizes") or [self.size] * self.world_size


def _all_reduce(call: Call) -> list[torch.Tensor]:
    tensor = call.given()
    dist.all_reduce(tensor, op=call.operation)
    return [tensor]


def _all_reduce_later(call: Call) -> list[torch.Tensor]:
    tensor = call.given()
    work = dist.all_reduce(tensor, op=call.operation, async_op=True)
    assert work is not None
    work.wait()
    return [tensor]


def _reduce(call: Call) -> list[torch.Tensor]:
    tensor = call.given()
    dist.reduce(tensor, call.root, op=call.operation)
    return [tensor] if call.is_root else []


def _reduce_scatter(call: Call) -> list[torch.Tensor]:
    parts = [call.given(size, seed) for seed, size in enumerate(call.sizes())]
    output = call.to_fill(call.sizes()[call.rank])
    dist.reduce_scatter(output, parts[: len(parts) - call.case.get("missing", 0)], op=call.operation)
    return [output]


def _reduce_scatter_tensor(call: Call) -> list[torch.Tensor]:
    output = call.to_fill()
    dist.reduce_scatter_tensor(output, call.given(call.size * call.world_size), op=call.operation)
    return [output]


def _broadcast(call: Call) -> list[torch.Tensor]:
    tensor = call.given() if call.is_root else call.to_fill()
    dist.broadcast(tensor, call.root)
    return [tensor]


def _all_gather(call: Call) -> list[torch.Tensor]:
    parts = [call.to_fill(size) for size in call.sizes()]
    dist.all_gather(parts[: len(parts) - call.case.get("missing", 0)], call.given(call.sizes()[call.rank]))
    return parts


def _all_gather_into_tensor(call: Call) -> list[torch.Tensor]:
    output = call.to_fill(call.size * call.world_size)
    dist.all_gather_into_tensor(output, call.given())
    return [output]


def _gather(call: Call) -> list[torch.Tensor]:
    parts = [call.to_fill() for _ in range(call.world_size - call.case.get("missing", 0))]
    dist.gather(call.given(), parts if call.is_root else None, call.root)
    return parts if call.is_root else []


def _scatter(call: Call) -> list[torch.Tensor]:
    output = call.to_fill()
    parts = [call.given(seed=seed) for seed in range(call.world_size - call.case.get("missing", 0))]
    dist.scatter(output, parts if call.is_root else None, call.root)
    return [output]


def _all_to_all(call: Call) -> list[torch.Tensor]:
    outputs = [call.to_fill() for _ in range(call.world_size)]
    dist.all_to_all(outputs, [call.given(seed=seed) for seed in range(call.world_size)])
    return outputs


def _all_to_all_single(call: Call) -> list[torch.Tensor]:
    output = call.to_fill(call.size * call.world_size)
    dist.all_to_all_single(output, call.given(call.size * call.world_size))
    return [output]


def _all_to_all_splits(call: Call) -> list[torch.Tensor]:
    """Rank r sends s + 1 values to rank s, so that it gets r + 1 from each."""
    sent = [s + 1 for s in range(call.world_size)]
    got = [call.rank + 1] * call.world_size
    output = call.to_fill(sum(got))
    dist.all_to_all_single(output, call.given(sum(sent)), got, sent)
    return [output]


def _send_recv(call: Call) -> list[torch.Tensor]:
    if call.rank == 0:
        dist.send(call.given(), 1)
        return []
    if call.rank > 1:
        return []
    tensor = call.to_fill()
    dist.recv(tensor, 0)
    return [tensor]


def _coalesced(call: Call) -> list[torch.Tensor]:
    tensors = [call.given(), call.given(3), call.given(2 * call.size)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor, op=call.operation)
    return tensors


COLLECTIVES: dict[str, Callable[[Call], list[torch.Tensor]]] = {
    "all_reduce": _all_reduce,
    "all_reduce, later": _all_reduce_later,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
    "all_to_all_single with splits": _all_to_all_splits,
    "send and recv": _send_recv,
    "coalesced": _coalesced,
}


# --- the same without communication -------------------------------------------------------------------------------------

Calls = Sequence[Call]


def _reduced(call: Call, given: Sequence[torch.Tensor]) -> torch.Tensor:
    """The reduction of these tensors, in their own type."""
    tensors = torch.stack([t.detach().to_dense().resolve_neg() for t in given])
    kind, op = tensors.dtype, call.case.get("op", "SUM")
    if op in ("MAX", "MIN"):
        return tensors.amax(0) if op == "MAX" else tensors.amin(0)
    if op in ("BAND", "BOR", "BXOR"):
        bitwise = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}[op]
        return functools.reduce(bitwise, tensors.unbind())
    if op == "PRODUCT":
        return tensors.prod(0).to(kind)
    whole = not (kind.is_floating_point or kind.is_complex)
    total = tensors.sum(0, dtype=kind) if whole else tensors.sum(0)
    if op == "AVG":
        return total.div(len(given), rounding_mode="trunc") if whole else total / len(given)
    return total * 0.5 if op == "PREMUL_SUM" else total


def _all(calls: Calls, rank: int) -> list[torch.Tensor]:
    return [_reduced(calls[0], [call.given() for call in calls])]


def _of_root(calls: Calls, rank: int) -> list[torch.Tensor]:
    return _all(calls, rank) if calls[rank].is_root else []


def _own_part(calls: Calls, rank: int) -> list[torch.Tensor]:
    size = calls[rank].sizes()[rank]
    return [_reduced(calls[0], [call.given(size, rank) for call in calls])]


def _own_share(calls: Calls, rank: int) -> list[torch.Tensor]:
    size = calls[0].size
    whole = _reduced(calls[0], [call.given(size * call.world_size) for call in calls])
    rows = len(whole) // len(calls)
    return [whole[rows * rank : rows * (rank + 1)]]


def _sent(calls: Calls, rank: int) -> list[torch.Tensor]:
    return [calls[calls[0].root].given()]


def _everyones(calls: Calls, rank: int) -> list[torch.Tensor]:
    return [call.given() for call in calls]


EXPECTED: dict[str, Callable[[Calls, int], list[torch.Tensor]]] = {
    "all_reduce": _all,
    "all_reduce, later": _all,
    "reduce": _of_root,
    "reduce_scatter": _own_part,
    "reduce_scatter_tensor": _own_share,
    "broadcast": _sent,
    "all_gather": _everyones,
    "all_gather_into_tensor": lambda calls, rank: [torch.cat(_everyones(calls, rank))],
    "gather": lambda calls, rank: _everyones(calls, rank) if calls[rank].is_root else [],
    "scatter": lambda calls, rank: [calls[calls[0].root].given(seed=rank)],
    "all_to_all": lambda calls, rank: [call.given(seed=rank) for call in calls],
    "all_to_all_single": lambda calls, rank: [
        torch.cat([c.given(c.size * len(calls)).chunk(len(calls))[rank] for c in calls])
        if calls[0].size
        else calls[0].given()
    ],
    "all_to_all_single with splits": lambda calls, rank: [
        torch.cat([c.given(sum(range(len(calls) + 1)))[sum(range(rank + 1)) :][: rank + 1] for c in calls])
    ],
    "send and recv": lambda calls, rank: [calls[0].given()] if rank == 1 else [],
    "coalesced": lambda calls, rank: [
        _reduced(calls[0], [c.given(size) for c in calls]) for size in (calls[0].size, 3, 2 * calls[0].size)
    ],
}
