"""Lightning, with gradients averaged in the switch: by the hook, or by the process-group backend.

sa-atp up -- torchrun --nproc-per-node 2 examples/recipes/lightning_digits.py
sa-atp up -- torchrun --nproc-per-node 2 examples/recipes/lightning_digits.py --backend
"""

import argparse
import json
import os
from typing import Any

import lightning
import torch
from digits import make_dataset, make_model
from lightning.pytorch.strategies import DDPStrategy
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from sa_atp.ddp import SaAtpState, sa_atp_hook


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = make_model()
        self.losses: list[float] = []

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        images, labels = batch
        loss = cross_entropy(self.model(images), labels)
        self.log("loss", loss, sync_dist=True, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        images, labels = batch
        right = self.model(images).argmax(1) == labels
        self.log("right", right.sum(), sync_dist=True)  # an integer, of which Lightning requests the mean

    def on_train_epoch_end(self) -> None:
        self.losses.append(float(self.trainer.callback_metrics["loss"]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", action="store_true", help="the process-group backend in place of the hook")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.backend:
        strategy = DDPStrategy(process_group_backend="sa_atp")
    else:
        strategy = DDPStrategy(
            process_group_backend="gloo", ddp_comm_state=SaAtpState.from_env(), ddp_comm_hook=sa_atp_hook
        )
    trainer = lightning.Trainer(
        accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy=strategy, max_epochs=options.epochs,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    digits, dataset = Digits(), make_dataset()
    trainer.fit(digits, DataLoader(dataset, 32, shuffle=True), DataLoader(dataset, 64))
    if trainer.is_global_zero:
        print(json.dumps({"losses": digits.losses, "ranks": trainer.world_size}), flush=True)


if __name__ == "__main__":
    main()
