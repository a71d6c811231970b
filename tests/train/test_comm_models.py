"""Gradients of well-known models as communication workloads: their sizes, and runs with them."""

import numpy as np
import pytest

from sa_atp.basics.errors import UserError
from sa_atp.steps.workloads.comm_models import COMM_MODELS, CommModel, parameter_shapes


@pytest.mark.parametrize("model", COMM_MODELS)
def test_parameters_are_as_many_as_published(model: str) -> None:
    shapes = parameter_shapes(model)
    assert sum(shape.values for shape in shapes) == COMM_MODELS[model]
    assert len({shape.name for shape in shapes}) == len(shapes)


def test_gradients() -> None:
    model = CommModel("bert-base", seed=3, world_size=2, batch_size=8, micro_batches=4, scale=0.001)
    assert model.micro_batch_size == 2
    assert 0.0009 * COMM_MODELS["bert-base"] < model.values < 0.0012 * COMM_MODELS["bert-base"]
    first, again, other = (model.gradient(0, 1, m)[0] for m in (2, 2, 3))
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()
    assert first.shape == (model.values,)
    assert first.dtype == np.float32
    same = CommModel("bert-base", seed=3, world_size=2, batch_size=8, micro_batches=4, scale=0.001)
    assert same.gradient(0, 1, 2)[0].tolist() == first.tolist(), "every worker must have the same"


def test_wrong_arguments() -> None:
    with pytest.raises(UserError, match="model 'resnet-51': expected one of resnet-50, vgg-16"):
        parameter_shapes("resnet-51")
    with pytest.raises(UserError, match="scale = 0"):
        CommModel("vgg-16", seed=1, world_size=1, batch_size=1, micro_batches=1, scale=0.0)
