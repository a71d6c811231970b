"""The Trainer of Hugging Face Transformers, with gradients averaged in the switch.

    sa-atp up -- torchrun --nproc-per-node 2 examples/recipes/trainer_digits.py

As for Accelerate, which it uses, the process group is there first. Nothing is downloaded: the model is an ordinary module.
"""

import argparse
import json
import tempfile

import torch
import torch.distributed as dist
from digits import make_dataset, make_model
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainingArguments

import sa_atp.ddp  # noqa: F401  (registers the backend)


class Digits(nn.Module):
    """A model for the Trainer: its arguments are named like a sample's fields, and it returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.model = make_model()

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.model(images)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("sa_atp")  # before there are TrainingArguments
    samples = [{"images": image, "labels": label} for image, label in make_dataset()]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, num_train_epochs=options.epochs, per_device_train_batch_size=32, learning_rate=1e-2,
            eval_strategy="epoch", logging_strategy="epoch", save_strategy="no", report_to=[], use_cpu=True,
            disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(Digits(), arguments, train_dataset=samples, eval_dataset=samples[:200])
        trainer.train()
    if trainer.is_world_process_zero():
        losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
        print(json.dumps({"losses": losses, "ranks": dist.get_world_size()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
