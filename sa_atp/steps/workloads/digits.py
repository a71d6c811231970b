"""The demo's workload: scikit-learn's handwritten digits and a small convolutional network in PyTorch.

Everything random (samples, dropout) is a function of (seed, step, shard, micro-batch), so a helper gets the same
gradient for a micro-batch as its owner.
"""

import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from sa_atp.basics.arrays import Indices, Octets, Values

HELD_OUT = 360  # of 1797 samples


@dataclass(frozen=True, slots=True)
class Score:
    """Mean cross-entropy and accuracy on the held-out samples."""

    loss: float
    accuracy: float


class DigitsCnn:
    """A model, its data and its optimiser, identical on every worker."""

    def __init__(
        self,
        *,
        seed: int,
        world_size: int,
        batch_size: int,
        micro_batches: int,
        learning_rate: float,
        momentum: float = 0.9,
    ) -> None:
        import torch
        from sklearn.datasets import load_digits
        from torch import nn

        torch.set_num_threads(1)  # workers share cores; and floating-point sums depend on the number of threads
        self.seed = seed
        self.world_size = world_size
        self.batch_size = batch_size
        self.micro_batch_size = batch_size // micro_batches
        digits = load_digits()
        order = np.random.default_rng([seed, 0xD1]).permutation(len(digits.target))
        standardised = (digits.images - digits.images.mean()) / digits.images.std()
        images = torch.from_numpy(standardised.astype(np.float32)).unsqueeze(1)
        labels = torch.from_numpy(digits.target.astype(np.int64))
        held_out, train = order[:HELD_OUT], order[HELD_OUT:]
        self._images, self._labels = images[train], labels[train]
        self._test_images, self._test_labels = images[held_out], labels[held_out]
        torch.manual_seed(seed)
        self.model = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 64),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(64, 10),
        )
        for layer in self.model:  # for ReLU (He et al. 2015): learns from the first step on
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        self._loss = nn.CrossEntropyLoss(reduction="sum")
        self._parameters = list(self.model.parameters())
        self._optimiser = torch.optim.SGD(self._parameters, lr=learning_rate, momentum=momentum)
        self.values = sum(p.numel() for p in self._parameters)
        self._loaded = threading.RLock()  # held while the model has other weights than the workload's own

    def gradient(self, step: int, shard: int, micro_batch: int) -> tuple[Values, float]:
        """Gradient of one micro-batch's share of the step's mean loss.

        Returns: float32[values]; and the micro-batch's mean loss.
        """
        return self.gradient_of(step, shard, micro_batch, self._places(shard, micro_batch))

    def gradient_of(self, step: int, shard: int, micro_batch: int, samples: range) -> tuple[Values, float]:
        """As `gradient`, where shards have different sizes. Args: samples: positions in the step's global batch."""
        import torch

        chosen = torch.from_numpy(self._samples(step, samples))
        # the CPU's generator: torch.manual_seed also notes the seed for each kind of device, with a formatted stack
        torch.default_generator.manual_seed(
            int(np.random.SeedSequence([self.seed, step, shard, micro_batch]).generate_state(1)[0])
        )
        self.model.train()
        self.model.zero_grad(set_to_none=True)
        loss = self._loss(self.model(self._images[chosen]), self._labels[chosen])
        (loss / (self.world_size * self.batch_size)).backward()
        flat = np.concatenate([_gradient(p).reshape(-1) for p in self._parameters])
        return flat, float(loss.detach()) / len(samples)

    def gradient_at(self, weights: Values, step: int, shard: int, micro_batch: int) -> tuple[Values, float]:
        """As `gradient`, with these weights, float32[values]; the workload's own stay as they are.

        It may run in a thread beside one that applies updates.
        """
        with self._loaded:
            own = self.snapshot()
            self._load(weights)
            try:
                return self.gradient(step, shard, micro_batch)
            finally:
                self._load(own)

    def initial(self) -> Values:
        """The weights that training begins with, float32[values]."""
        return self.snapshot()

    def samples(self, step: int, shard: int, micro_batch: int) -> Octets:
        """A micro-batch's images and labels, uint8[bytes]."""
        chosen = self._samples(step, self._places(shard, micro_batch))
        images, labels = self._images.numpy()[chosen], self._labels.numpy()[chosen].astype(np.uint8)
        return np.concatenate([images.reshape(-1).view(np.uint8), labels])

    def apply(self, gradient: Values) -> None:
        """One step of the optimiser. Args: gradient: float32[values], the sum over all shards."""
        import torch

        at = 0
        with self._loaded:
            for parameter in self._parameters:
                end = at + parameter.numel()
                parameter.grad = torch.from_numpy(gradient[at:end]).view_as(parameter)
                at = end
            self._optimiser.step()

    def snapshot(self) -> Values:
        """A copy of the weights, float32[values], to be evaluated after the run."""
        with self._loaded:
            return np.concatenate([p.detach().numpy().reshape(-1) for p in self._parameters])

    def score(self, weights: Values) -> Score:
        """Held-out loss and accuracy with these weights."""
        import torch

        self._load(weights)
        with torch.no_grad():
            self.model.eval()
            outputs = self.model(self._test_images)
            loss = float(self._loss(outputs, self._test_labels)) / len(self._test_labels)
            accuracy = float((outputs.argmax(1) == self._test_labels).float().mean())
        return Score(loss, accuracy)

    def _load(self, weights: Values) -> None:
        import torch

        at = 0
        with torch.no_grad():
            for parameter in self._parameters:
                end = at + parameter.numel()
                parameter.copy_(torch.from_numpy(weights[at:end]).view_as(parameter))
                at = end

    def _places(self, shard: int, micro_batch: int) -> range:
        """Positions of a micro-batch's samples in the step's global batch, where all shards have the same size."""
        first = shard * self.batch_size + micro_batch * self.micro_batch_size
        return range(first, first + self.micro_batch_size)

    def _samples(self, step: int, samples: range) -> Indices:
        """Indices of training samples; each epoch goes through all of them in a new order.

        Args: samples: positions in the step's global batch.
        """
        total = len(self._labels)
        places = step * self.world_size * self.batch_size + np.arange(samples.start, samples.stop)
        found = np.empty(len(places), np.int64)
        for epoch in np.unique(places // total):
            order = _order(self.seed, int(epoch), total)
            now = places // total == epoch
            found[now] = order[places[now] % total]
        return found


@lru_cache(maxsize=8)
def _order(seed: int, epoch: int, total: int) -> Indices:
    """The order of the training samples in an epoch."""
    return np.random.default_rng([seed, 0xE0, epoch]).permutation(total)


def _gradient(parameter: Any) -> Values:
    grad: Values = parameter.grad.detach().numpy()
    return grad
