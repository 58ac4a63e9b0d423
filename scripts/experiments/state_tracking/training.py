"""State tracking: which fast nets learn the parity of the bits that they have read so far.

One layer of fwp_fairseq.layers.FastWeightDecoder reads random bits and says after each whether there were an odd number
of ones. It learns from sequences of 20 bits, and is also evaluated on 160. A linear recurrence whose transitions have
no negative eigenvalues, as linear attention and the delta rule with beta in [0, 1] are, cannot compute parity at any
length (Grazzi et al. 2025, "Unlocking State-Tracking in Linear RNNs Through Negative Eigenvalues"). With beta up to 2
and features of length 1 the delta rule has negative ones. Irie et al. 2021 show the same difference on the execution
of code."""

import sys
import time

import torch
import torch.nn.functional as F

from fwp_fairseq.layers import FastWeightDecoder
from scripts.common.runner.work import called

from .rows import EVALUATE_EVERY, MOST_STEPS, SOLVED, layer_options

LENGTH, TIMES_LONGER, BATCH, EVALUATION_ROWS = 20, 8, 32, 128
SIZES = {"embed_dim": 32, "num_heads": 2, "num_layers": 1}
LR, CLIP = 1e-2, 1.0


def batch(rows: int, length: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws random bits (rows, length), and the parity of the first t for every t."""
    bits = torch.randint(2, (rows, length), generator=generator)
    return bits, bits.cumsum(1) % 2


@torch.no_grad()
def accuracy(model: FastWeightDecoder, length: int, generator: torch.Generator) -> float:
    """Returns the share of right answers at the last tenth of the positions."""
    bits, parity = batch(EVALUATION_ROWS, length, generator)
    last = slice(-(length // 10), None)
    return (model(bits)[0].argmax(-1) == parity)[:, last].float().mean().item()


def train(name: str, seed: int, most_steps: int = MOST_STEPS) -> dict:
    """Trains a model until it is solved on both lengths; returns its record without the environment."""
    begin, used = time.monotonic(), time.process_time()
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    kind, options = layer_options(name)
    model = FastWeightDecoder(kind, 2, **SIZES, **options)
    optimizer = torch.optim.Adam(model.parameters(), LR)
    losses, accuracies, stop = [], [], "steps"
    for step in range(1, most_steps + 1):
        bits, parity = batch(BATCH, LENGTH, generator)
        loss = F.cross_entropy(model(bits)[0].flatten(0, 1), parity.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        if step % EVALUATE_EVERY and step < most_steps:
            continue
        losses.append(round(loss.item(), 5))
        accuracies.append(round(accuracy(model, LENGTH, generator), 5))
        print(f"step {step}, accuracy {accuracies[-1]:.4f}", flush=True)
        # The longer sequences take most of the time, and are not solved while the shorter ones are not.
        if accuracies[-1] >= SOLVED or step == most_steps:
            longer = round(accuracy(model, TIMES_LONGER * LENGTH, generator), 5)
            if min(accuracies[-1], longer) >= SOLVED:
                stop = "solved"
                break
    return {
        "table": "parity",
        "model": name,
        "seed": seed,
        **SIZES,
        "length": LENGTH,
        "lr": LR,
        "batch": BATCH,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "losses": losses,
        "accuracies": accuracies,
        "accuracy": accuracies[-1],
        "long_accuracy": longer,
        "steps": step,
        "most_steps": most_steps,
        "stop": stop,
        "seconds": round(time.monotonic() - begin, 1),
        "cpu_seconds": round(time.process_time() - used, 1),
    }


if __name__ == "__main__":
    called(lambda arguments: train(**arguments), sys.argv[1:])
