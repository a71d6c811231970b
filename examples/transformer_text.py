"""A small transformer learns the text of Python's own documentation, letter by letter, with float16 gradients.

    sa-atp up -- torchrun --nproc-per-node 2 examples/transformer_text.py

The text ships with every Python (pydoc_data.topics). Gradients are cast to float16 before they are sent, by PyTorch's
own wrapper around the hook; two backward passes are accumulated for each step.
"""

import argparse
import json
import pydoc_data.topics

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_wrapper
from torch.nn.parallel import DistributedDataParallel

from sa_atp.ddp import SaAtpState, sa_atp_hook


class Letters(nn.Module):
    """Predicts the next byte from those before it."""

    def __init__(self, context: int, width: int, layers: int) -> None:
        super().__init__()
        self.token = nn.Embedding(128, width)
        self.place = nn.Parameter(torch.zeros(context, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 128)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.body(self.token(tokens) + self.place, mask=self.mask, is_causal=True)
        logits: torch.Tensor = self.head(hidden)
        return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=16, help="per rank and backward pass")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="end with the losses as one JSON object")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    text = "\n".join(pydoc_data.topics.topics.values()).encode("ascii", "replace")
    corpus = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    torch.manual_seed(0)
    model = DistributedDataParallel(Letters(options.context, options.width, options.layers), bucket_cap_mb=1)
    state = SaAtpState.from_env()
    model.register_comm_hook(state, fp16_compress_wrapper(sa_atp_hook))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(1 + rank)

    def backward() -> torch.Tensor:
        starts = torch.randint(len(corpus) - options.context - 1, (options.batch_size,), generator=generator)
        rows = corpus[starts[:, None] + torch.arange(options.context + 1)]
        loss = nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()) / 2
        loss.backward()
        return loss.detach()

    losses = []
    for step in range(options.steps):
        optimizer.zero_grad()
        with model.no_sync():
            total = backward()
        total += backward()
        optimizer.step()
        dist.all_reduce(total)
        losses.append(float(total) / dist.get_world_size())
        if rank == 0 and step % 10 == 9:
            print(f"step {step + 1}: loss {losses[-1]:.3f} nats a letter", flush=True)
    if options.json and rank == 0:
        print(json.dumps({"losses": losses}), flush=True)
    state.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
