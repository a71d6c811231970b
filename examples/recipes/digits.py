"""The model and data of the recipes: a small model on scikit-learn's handwritten digits."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def make_dataset() -> TensorDataset:
    """1797 images, float32[8, 8], and their labels."""
    digits = load_digits()
    return TensorDataset(torch.from_numpy(digits.images / 16).float(), torch.from_numpy(digits.target))
