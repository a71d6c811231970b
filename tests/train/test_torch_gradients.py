"""The gradient of any rank's batch, computed on the side: what it is, what it leaves alone, and how it is abandoned."""

import random
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sa_atp.basics.errors import UserError
from sa_atp.protocol.numbers.quantise import dequantise, largest, poisoned, quantise
from sa_atp.protocol.numbers.scaling import ChunkHistory, after_gather, gathered_exponent, magnitude_code
from sa_atp.steps.device import Cancelled
from sa_atp.steps.workloads.abandon import abandonable
from sa_atp.steps.workloads.collector import Collector
from sa_atp.steps.workloads.exact import from_halves, to_halves
from sa_atp.steps.workloads.layout import layout_of
from sa_atp.steps.workloads.module_workload import ModuleWorkload
from sa_atp.steps.workloads.seeds import seeded
from sa_atp.train import emulate_device


def make_batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(6, 8), torch.randn(6, 1) + random.random() + np.random.rand()


def make_workload(module: nn.Module, batch_of: Any = make_batch, **arguments: Any) -> ModuleWorkload:
    running = arguments.pop("running", ())
    unused = arguments.pop("unused", False)
    micro_batches = arguments.get("micro_batches", 1)
    layout = layout_of(module, bucket_bytes=400, unused=unused, running=running, micro_batches=micro_batches)
    settings: dict[str, Any] = {"micro_batches": 1, "seed": 5, "host": None, "streams": False, **arguments}
    return ModuleWorkload(module, nn.functional.mse_loss, batch_of, layout, **settings)


def make_module() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))


def test_layout_covers_every_value_once() -> None:
    module = make_module()
    layout = layout_of(module, bucket_bytes=200, unused=True)
    spans = [*layout.gradients.values(), *layout.running.values(), *layout.counted.values(), *layout.used.values()]
    covered = sorted([*spans, layout.loss])
    assert [start for start, _ in covered] == [0, *[end for _, end in covered[:-1]]]
    assert covered[-1][1] == layout.values
    assert [(s.start, s.end) for s in layout.segments][-1] == layout.loss
    assert [s.start for s in layout.segments] == [0, *[s.end for s in layout.segments[:-1]]]
    assert next(iter(layout.gradients)) == "4.bias", "what the backward pass reaches first comes first"
    assert set(layout.running) == {"1.running_mean", "1.running_var"}
    assert set(layout.counted) == {"1.num_batches_tracked"}


def test_gradient_is_autograds() -> None:
    module = make_module()
    reference = make_module()
    workload = make_workload(module)
    flat, loss = workload.gradient(3, 1, 0)
    with seeded(5, 3, 1):
        x, y = make_batch(3, 1)
    with seeded(5, 3, 1, 0):
        expected = nn.functional.mse_loss(reference(x), y)
        expected.backward()
    assert loss == float(expected.detach())
    for name, parameter in reference.named_parameters():
        start, end = workload.layout.gradients[name]
        assert parameter.grad is not None
        assert flat[start:end].tolist() == parameter.grad.reshape(-1).tolist()


def numpy_state() -> list[int]:
    found: list[int] = np.random.get_state(legacy=False)["state"]["key"].tolist()
    return found


def test_the_model_does_not_notice() -> None:
    module = make_module()
    module[0].weight.grad = torch.full((8, 8), 7.0)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    generators = random.getstate(), numpy_state(), torch.get_rng_state()
    workload = make_workload(module)
    first = workload.gradient(0, 2, 0)[0]
    assert {n: v.tolist() for n, v in module.state_dict().items()} == {n: v.tolist() for n, v in before.items()}
    assert module[0].weight.grad.tolist() == torch.full((8, 8), 7.0).tolist()
    assert module[4].weight.grad is None
    assert random.getstate() == generators[0]
    assert numpy_state() == generators[1]
    assert torch.equal(torch.get_rng_state(), generators[2])
    assert workload.gradient(0, 2, 0)[0].tolist() == first.tolist(), "dropout must be a function of (step, rank)"
    assert workload.gradient(0, 1, 0)[0].tolist() != first.tolist()
    assert workload.gradient(1, 2, 0)[0].tolist() != first.tolist()


def test_only_rank_0_decides_statistics() -> None:
    workload = make_workload(make_module())
    start, end = workload.layout.running["1.running_mean"]
    count, _ = workload.layout.counted["1.num_batches_tracked"]
    own, other = workload.gradient(0, 0, 0)[0], workload.gradient(0, 1, 0)[0]
    after = make_module()
    with seeded(5, 0, 0):
        x, _ = make_batch(0, 0)
    after(x)
    mean = after.get_buffer("1.running_mean")
    assert from_halves(torch.from_numpy(own[start:end]).view(-1, 2)).tolist() == mean.tolist()
    assert own[count] == 1
    assert not np.any(other[start:end])
    assert other[count] == 0


def test_statistics_that_are_not_finite_are_not_hidden_in_their_bits() -> None:
    module = make_module()
    module.get_buffer("1.running_var")[2] = torch.inf
    workload = make_workload(module)
    start, end = workload.layout.running["1.running_var"]
    assert np.isnan(workload.gradient(0, 0, 0)[0][start:end]).all(), "the sum is to fail"


def test_each_micro_batch_has_a_place_for_its_statistics() -> None:
    workload = make_workload(make_module(), micro_batches=2)
    start, end = workload.layout.running["1.running_mean"]
    assert end - start == 2 * 2 * 8
    parts = [workload.gradient(0, 0, m)[0][start:end].reshape(2, -1) for m in range(2)]
    assert [[bool(place.any()) for place in part] for part in parts] == [[True, False], [False, True]]
    sums = np.zeros(workload.values, np.float32)
    sums[start:end] = (parts[0] + parts[1]).reshape(-1)
    workload.apply(sums)
    values = from_halves(torch.from_numpy(parts[0] + parts[1]).view(2, -1, 2))
    assert workload.module.get_buffer("1.running_mean").tolist() == (values[0] + values[1]).tolist()


@pytest.mark.parametrize("contributions", [1, 2, 4, 16, 64])
def test_bits_come_out_of_sums_as_they_went_in(contributions: int) -> None:
    """As a chunk is summed: with history, poison, and values that change their magnitude from step to step."""
    rng = np.random.default_rng(contributions)
    history: ChunkHistory | None = None
    sums, out = np.empty(512, np.int32), np.empty(512, np.float32)
    gathers = 0
    for step in range(200):
        if step % 20 < 3:  # the upper halves are small, or there are no others
            bits = rng.integers(0, 1 << (0, 3, 31)[step % 20], 256, dtype=np.uint32, endpoint=step % 20 > 0)
        else:
            bits = rng.integers(0, 1 << 32, 256, dtype=np.uint32)
        bits[rng.integers(256)] = 0xFFFF  # as large as a lower half can be
        bits &= np.where(bits >> 23 & 0xFF == 0xFF, 0xBFFFFFFF, 0xFFFFFFFF).astype(np.uint32)  # finite
        sent = to_halves(torch.from_numpy(bits.view(np.float32))).reshape(-1).numpy()
        exponent = history.exponent if history else gathered_exponent(magnitude_code(sent), contributions)
        quantise([sent], exponent, contributions, sums)
        top = largest(sums)
        if history is None or poisoned(top) or history.too_coarse(exponent, top, contributions):
            gathers += 1
            exponent = gathered_exponent(magnitude_code(sent), contributions)
            quantise([sent], exponent, contributions, sums)
            history = after_gather(exponent, largest(sums), contributions)
        else:
            history.after_sum(exponent, top, contributions)
        assert exponent >= 0
        dequantise(sums, exponent, out)
        assert from_halves(torch.from_numpy(out).view(-1, 2)).numpy().view(np.uint32).tolist() == bits.tolist()
    assert 0 < gathers < 100


def test_sum_is_applied() -> None:
    module = make_module()
    workload = make_workload(module)
    sums = np.arange(workload.values, dtype=np.float32)
    workload.apply(sums)
    start, _ = workload.layout.gradients["0.weight"]
    weight = module.get_parameter("0.weight")
    assert weight.grad is not None
    assert weight.grad[0, :3].tolist() == [start, start + 1, start + 2]
    assert module.get_buffer("1.num_batches_tracked").item() == workload.layout.counted["1.num_batches_tracked"][0]
    workload.apply(sums)
    assert weight.grad[0, :3].tolist() == [2 * start, 2 * start + 2, 2 * start + 4]


@pytest.mark.parametrize("where", ["forward", "backward", "sleep"])
def test_abandoned_work_leaves_no_trace(where: str) -> None:
    module = make_module()
    before = {name: value.tolist() for name, value in module.state_dict().items()}
    stop: Future[None] = Future()
    reached: list[str] = []
    if where == "forward":
        handle = module[2].register_forward_hook(lambda *_: stop.set_result(None))
        module[3].register_forward_hook(lambda *_: reached.append("module behind it"))
    elif where == "backward":
        handle = module[4].register_forward_hook(lambda *_: stop.set_result(None))  # all that is left is backward
    else:
        stop.set_result(None)
        handle = emulate_device(module, 1000.0)
    workload = make_workload(module)
    with abandonable(stop), pytest.raises(Cancelled):
        workload.gradient(0, 1, 0)
    assert not reached
    assert {name: value.tolist() for name, value in module.state_dict().items()} == before
    assert all(p.grad is None and p.is_leaf for p in module.parameters())
    handle.remove()
    module.eval()
    module(torch.zeros(1, 8))  # calls are not watched any more


def test_a_backward_pass_in_a_thread_of_its_own_is_abandoned() -> None:
    """Autograd has a thread for each GPU."""
    module = nn.Linear(2, 1, bias=False)
    stop: Future[None] = Future()
    with abandonable(stop):
        collector = Collector(layout_of(module, bucket_bytes=400, unused=False), torch.device("cpu"))
    take = collector.hook_for("weight")
    with ThreadPoolExecutor(1) as autograd:
        module.weight.grad = torch.ones(1, 2)
        autograd.submit(take, module.weight).result()
        assert collector.flat[:2].tolist() == [1.0, 1.0]
        stop.set_result(None)
        with pytest.raises(Cancelled):
            autograd.submit(take, module.weight).result()


def test_inputs_by_position_and_by_name() -> None:
    torch.manual_seed(0)
    module = nn.Bilinear(4, 4, 1)
    x, shift, y = torch.ones(2, 4), torch.full((2, 4), 2.0), torch.zeros(2, 1)
    found = [
        make_workload(module, lambda step, rank, i=inputs: (i, y)).gradient(0, 0, 0)[0].tolist()
        for inputs in ((x, shift), [x, shift], {"input2": shift, "input1": x})
    ]
    assert found[0] == found[1] == found[2]


def test_sparse_and_unused_gradients() -> None:
    module = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 1))
    module.extra = nn.Linear(3, 3)
    workload = make_workload(module, lambda step, rank: (torch.tensor([1, 1, 2]), torch.zeros(3, 1)), unused=True)
    workload.module.forward = lambda x: module[1](module[0](x))
    flat, _ = workload.gradient(0, 0, 0)
    start, end = workload.layout.gradients["0.weight"]
    rows = flat[start:end].reshape(10, 4)
    assert np.any(rows[1])
    assert np.any(rows[2])
    assert not np.any(rows[3:])
    assert flat[workload.layout.used["0.weight"][0]] == 1
    assert flat[workload.layout.used["extra.weight"][0]] == 0
    workload.apply(flat)
    assert module[0].weight.grad is not None
    assert module.extra.weight.grad is None, "a parameter that nobody used must keep its gradient, or lack of one"


@pytest.mark.parametrize(
    ("module", "batch", "arguments", "message"),
    [
        (nn.SyncBatchNorm(3), make_batch, {}, "SyncBatchNorm, whose forward pass needs all ranks"),
        (nn.Flatten(), make_batch, {}, "no parameter that requires a gradient"),
        (nn.Linear(8, 1), make_batch, {"running": ["mean"]}, "running = 'mean': the model has no such buffer"),
        (
            nn.Linear(8, 1),
            lambda step, rank: torch.ones(3),
            {},
            r"batch_of\(2, 0\) returned a Tensor: expected \(inputs",
        ),
        (nn.Linear(8, 1), make_batch, {"micro_batches": 7}, "a batch of 6 samples cannot be cut into 7 micro-batches"),
        (
            nn.Linear(8, 1, dtype=torch.complex64),
            make_batch,
            {},
            "bias is torch.complex64: expected float32, float16 or bfloat16",
        ),
        (nn.Linear(8, 1, dtype=torch.float64), make_batch, {}, "summed in the switch, which has no other types"),
    ],
)
def test_models_that_cannot_be_helped_with(module: nn.Module, batch: Any, arguments: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_workload(module, batch, **arguments).gradient(2, 0, 0)


def test_a_buffer_that_changes_must_be_named() -> None:
    class Counting(nn.Module):
        mean: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 1)
            self.register_buffer("mean", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mean = self.mean + x.mean()
            found: torch.Tensor = self.linear(x)
            return found

    with pytest.raises(UserError, match="the model changes its buffer mean"):
        make_workload(Counting()).gradient(0, 0, 0)
    module = Counting()
    workload = make_workload(module, running=("mean",))
    flat, _ = workload.gradient(0, 0, 0)
    start, end = workload.layout.running["mean"]
    assert torch.all(from_halves(torch.from_numpy(flat[start:end]).view(-1, 2)) != 0)
    assert module.mean.tolist() == [0.0, 0.0]
