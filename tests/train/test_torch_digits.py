"""The demo's workload, with weights that come from elsewhere."""

import numpy as np
import pytest

pytestmark = pytest.mark.needs("torch", "sklearn")


def test_gradients_at_given_weights_depend_on_nothing_else() -> None:
    from sa_atp.steps.workloads.digits import DigitsCnn

    one, other = (DigitsCnn(seed=3, world_size=2, batch_size=16, micro_batches=4, learning_rate=0.1) for _ in range(2))
    weights = one.initial()
    gradient, loss = one.gradient(5, 1, 2)
    elsewhere, _ = other.gradient_at(weights + np.float32(0.05), 5, 1, 2)
    assert not np.array_equal(elsewhere, gradient)
    again, same_loss = other.gradient_at(weights, 5, 1, 2)
    assert again.tobytes() == gradient.tobytes()
    assert same_loss == loss
    assert one.samples(5, 1, 2).tobytes() == other.samples(5, 1, 2).tobytes()
    assert one.samples(5, 1, 2).nbytes == 4 * (8 * 8 * 4 + 1)  # four images in float32, and their labels
