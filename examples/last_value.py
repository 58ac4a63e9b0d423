"""Learns to say the last value that was written under a key, with four kinds of attention, and draws last_value.svg.

python examples/last_value.py needs torch and matplotlib, and takes about a minute on one CPU core.
"""

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

from fwp_fairseq.layers.decoder import DecoderLayer

ATTENTIONS = {
    "softmax": ("softmax", {}),
    "delta": ("delta", {}),
    "dpfp": ("dpfp", {}),
    "dpfp with the delta rule": ("dpfp", {"update_rule": "delta"}),
}


def batch(rows: int) -> tuple[Tensor, Tensor]:
    """Draws 16 pairs of a key (0 to 7) and a value (8 to 15), and the last value of each key, -100 if it has none."""
    keys, values = torch.randint(8, (2, rows, 16))
    known, last = torch.full((rows, 8), -100), []
    for key, value in zip(keys.T, values.T, strict=True):
        last.append(known[range(rows), key])
        known[range(rows), key] = value
    return torch.stack([keys, values + 8], 2).flatten(1), torch.stack(last, 1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, (kind, options) in ATTENTIONS.items():
        torch.manual_seed(1)
        tokens, places = nn.Embedding(16, 64), nn.Embedding(32, 64)
        layers = [DecoderLayer(kind, 64, num_heads=4, ffn_dim=256, dropout=0, **options) for _ in range(2)]
        scores = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 8))
        model = nn.ModuleList([tokens, places, *layers, scores])
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        accuracies = torch.zeros(300)  # on the new sequences of each update, before the model learns from them
        for update in range(300):
            sequences, last = batch(64)
            x = tokens(sequences) + places.weight
            for layer in layers:
                x, _ = layer(x, None)
            logits = scores(x[:, ::2])  # at the keys
            accuracies[update] = (logits.argmax(-1) == last)[last >= 0].float().mean()
            nn.functional.cross_entropy(logits.flatten(0, 1), last.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
        means = accuracies.view(-1, 20).mean(1)
        print(f"{name}: accuracy {means[-1]:.2f}", flush=True)
        plt.plot(range(10, 300, 20), means, label=name)
    plt.gca().set(xlabel="updates", ylabel="accuracy", ylim=(0, 1.02))
    plt.legend()
    plt.savefig("last_value.svg")
