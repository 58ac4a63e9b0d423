"""Learns to say the last value that was written under a key, with four kinds of attention, and draws last_value.svg.

python examples/last_value.py needs torch and matplotlib, and takes about a minute on one CPU core.
"""

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

from fwp_fairseq.layers.decoder import DecoderLayer

ATTENTIONS = {
    "softmax": {"kind": "softmax"},
    "delta": {"kind": "delta"},
    "dpfp": {"kind": "dpfp"},
    "dpfp with the delta rule": {"kind": "dpfp", "update_rule": "delta"},
}


class Model(nn.Module):
    def __init__(self, **attention):
        super().__init__()
        self.tokens, self.places = nn.Embedding(16, 64), nn.Embedding(32, 64)
        self.layers = nn.ModuleList(
            DecoderLayer(embed_dim=64, num_heads=4, ffn_dim=256, dropout=0, **attention) for _ in range(2)
        )
        self.values = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 8))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight
        for layer in self.layers:
            x, _ = layer(x, None)
        return self.values(x[:, ::2])  # at the keys


def batch(rows: int) -> tuple[Tensor, Tensor]:
    """Draws 16 pairs of a key (0 to 7) and a value (8 to 15), and the last value of each key, -100 if it has none."""
    keys, values = torch.randint(8, (2, rows, 16))
    earlier = (keys[:, :, None] == keys[:, None]) & torch.ones(16, 16, dtype=torch.bool).tril(-1)
    last = (earlier * torch.arange(1, 17)).amax(-1)  # 0 if there is none
    expected = values.gather(1, (last - 1).clamp(min=0)).masked_fill(last == 0, -100)
    return torch.stack([keys, values + 8], 2).flatten(1), expected


def train(updates: int = 300, **attention) -> list[float]:
    """Returns the accuracy on the new sequences of each update, before the model learns from them."""
    torch.manual_seed(1)
    model, accuracies = Model(**attention), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(updates):
        tokens, expected = batch(64)
        logits = model(tokens)
        accuracies.append((logits.argmax(-1) == expected)[expected >= 0].float().mean().item())
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits.flatten(0, 1), expected.flatten()).backward()
        optimizer.step()
    return accuracies


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, attention in ATTENTIONS.items():
        means = torch.tensor(train(**attention)).view(-1, 20).mean(1)  # of 20 updates each
        print(f"{name}: accuracy {means[-1]:.2f}", flush=True)
        plt.plot(range(10, 300, 20), means, label=name)
    plt.gca().set(xlabel="updates", ylabel="accuracy", ylim=(0, 1.02))
    plt.legend()
    plt.savefig("last_value.svg")
