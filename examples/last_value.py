"""Learns to say the last value that was written under a key, in a minute on one core; draws last_value.svg."""

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

from fwp_fairseq.layers import FastWeightDecoder

KINDS = {"softmax": {}, "delta": {}, "dpfp": {}, "dpfp with the delta rule": {"update_rule": "delta"}}


def batch(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws 16 pairs of a key (0 to 7) and a value (8 to 15), and the last value of each key, -100 if it has none."""
    keys, values = torch.randint(8, (2, rows, 16))
    known, last = torch.full((rows, 8), -100), []
    for key, value in zip(keys.T, values.T, strict=True):
        last.append(known[range(rows), key])
        known[range(rows), key] = value
    return torch.stack([keys, values + 8], 2).flatten(1), torch.stack(last, 1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, options in KINDS.items():
        torch.manual_seed(1)
        model = FastWeightDecoder(name.split()[0], vocabulary=16, embed_dim=64, num_layers=2, **options)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        accuracies = torch.zeros(300)  # on the new sequences of each update, before the model learns from them
        for update in range(300):
            tokens, last = batch(64)
            logits = model(tokens)[0][:, ::2, 8:]  # of the values, at the keys
            accuracies[update] = (logits.argmax(-1) == last)[last >= 0].float().mean()
            F.cross_entropy(logits.transpose(1, 2), last).backward()
            optimizer.step()
            optimizer.zero_grad()
        print(f"{name}: accuracy {accuracies[-20:].mean():.2f}", flush=True)
        plt.plot(range(10, 300, 20), accuracies.view(-1, 20).mean(1), label=name)
    plt.gca().set(xlabel="updates", ylabel="accuracy", ylim=(0, 1.02))
    plt.legend()
    plt.savefig("last_value.svg")
