#!/usr/bin/env python3
"""Learns to say the last value that was written under a key, with four kinds of attention.

python examples/last_value.py needs torch alone and no text, and takes about a minute on one CPU core; with matplotlib
it draws the accuracies into --out. A sequence is key, value, key, value, ... of 8 keys and 8 values, 16 pairs long, and
at every key the model says the value that followed this key last. A new value has to take the place of the old one,
which is what the delta rule does.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from torch import Tensor, nn

from fwp_fairseq.layers import FastWeightAttention, SoftmaxAttention
from fwp_fairseq.tables.plot import Plot, Series, draw

KEYS, VALUES, PAIRS, WIDTH = 8, 8, 16, 64
ATTENTIONS = {
    "softmax": {"kind": "softmax"},
    "delta": {"kind": "delta"},  # the attention of the hybrids: ELU+1, features of length 1, a norm of the output
    "dpfp": {"kind": "dpfp"},  # linear attention
    "dpfp with the delta rule": {"kind": "dpfp", "update_rule": "delta"},  # without what the rule needs beside it
}


class Block(nn.Module):
    def __init__(self, kind: str, **options):
        super().__init__()
        attention = SoftmaxAttention if kind == "softmax" else partial(FastWeightAttention, kind)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.attention = attention(embed_dim=WIDTH, num_heads=4, **options)
        self.ffn = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x), return_state=False)[0]
        return x + self.ffn(self.norms[1](x))


class Model(nn.Module):
    def __init__(self, **attention):
        super().__init__()
        self.tokens, self.places = nn.Embedding(KEYS + VALUES, WIDTH), nn.Embedding(2 * PAIRS, WIDTH)
        self.blocks = nn.Sequential(Block(**attention), Block(**attention), nn.LayerNorm(WIDTH))
        self.values = nn.Linear(WIDTH, VALUES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns logits (B, 16, 8) of the value at each key of tokens (B, 32)."""
        return self.values(self.blocks(self.tokens(tokens) + self.places.weight)[:, ::2])


def batch(rows: int) -> tuple[Tensor, Tensor]:
    """Draws tokens (rows, 32), and the last value of each key (rows, 16): -100 at a key that has none yet."""
    keys, values = torch.randint(KEYS, (rows, PAIRS)), torch.randint(VALUES, (rows, PAIRS))
    earlier = (keys[:, :, None] == keys[:, None]) & torch.ones(PAIRS, PAIRS, dtype=torch.bool).tril(-1)
    last = (earlier * torch.arange(1, PAIRS + 1)).amax(-1)  # 0: none
    expected = values.gather(1, (last - 1).clamp(min=0)).masked_fill(last == 0, -100)
    return torch.stack([keys, KEYS + values], 2).flatten(1), expected


@torch.no_grad()
def accuracy(model: Model) -> float:
    tokens, expected = batch(1000)
    right = model(tokens).argmax(-1)[:, -1] == expected[:, -1]
    return right[expected[:, -1] >= 0].float().mean().item()


def train(attention: dict, updates: int = 300, seed: int = 1) -> dict[int, float]:
    """Returns the accuracy at the last key of new sequences, by the number of updates."""
    torch.manual_seed(seed)
    model = Model(**attention)
    optimizer, found = torch.optim.AdamW(model.parameters(), lr=3e-3), {}
    for update in range(1, updates + 1):
        tokens, expected = batch(64)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), expected.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % 25 == 0:
            found[update] = accuracy(model)
    return found


def main(argv: list[str] | None = None) -> int:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout, allow_abbrev=False)
    parser.add_argument("--updates", type=int, default=300, metavar="N", help="default: 300; a multiple of 25")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="default: 1")
    parser.add_argument(
        "--out", type=Path, default=Path("last_value.svg"), metavar="FILE", help="default: last_value.svg"
    )
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    curves = []
    for name, attention in ATTENTIONS.items():
        found = train(attention, args.updates, args.seed)
        print(f"{name}: accuracy {found[max(found)]:.2f}", flush=True)
        curves.append(Series(name, name, {update: (x, None) for update, x in found.items()}, marked=False))
    try:
        args.out.write_bytes(
            draw(Plot("updates", "accuracy at the last key", curves, log_x=0, y_range=(0, 1.02)), args.out.suffix[1:])
        )
    except ImportError:
        print("matplotlib is not installed: no picture")
    return 0


if __name__ == "__main__":
    sys.exit(main())
