#!/usr/bin/env python3
"""Trains a language model of characters on Tiny Shakespeare, and lets it write.

python examples/tiny_shakespeare.py needs torch alone; with matplotlib it also draws the losses. It takes about 6
minutes on one CPU core. The text, 1.1 million characters, is read from $FWP_DATA/tinyshakespeare or
../shared/data/tinyshakespeare if it is there; otherwise it is downloaded. Either is checked against a pinned checksum.

The text is cut into as many streams as a batch has rows, and each stream into segments. The fast weights at the end of
a segment are those that the next one begins with, so that the model knows of everything before, at a cost that does not
depend on how much that is. When it writes, it reads one character at a time in the same way.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor  # noqa: E402

from fwp_fairseq.files import write_atomically  # noqa: E402
from fwp_fairseq.layers import FastWeightDecoder  # noqa: E402
from fwp_fairseq.tables.plot import Plot, Series, draw  # noqa: E402
from scripts.common.errors import RecipeError  # noqa: E402
from scripts.data.sources import provide  # noqa: E402
from scripts.experiments.language_models.data import TINY_SHAKESPEARE  # noqa: E402

WARMUP = 50
HELD_OUT = 0.05  # the end of the text
EVALUATED_STREAMS, EVALUATED_SEGMENT = 64, 128


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "runs/tiny_shakespeare", help="default: runs/tiny_shakespeare"
    )
    parser.add_argument("--updates", type=int, default=2500, metavar="N", help="default: 2500")
    parser.add_argument("--batch-size", type=int, default=16, metavar="N", help="streams (default: 16)")
    parser.add_argument("--segment", type=int, default=64, metavar="N", help="characters of a segment (default: 64)")
    parser.add_argument("--lr", type=float, default=3e-3, metavar="X", help="highest learning rate (default: 0.003)")
    parser.add_argument("--embed-dim", type=int, default=128, metavar="N", help="default: 128")
    parser.add_argument("--layers", type=int, default=3, metavar="N", help="default: 3")
    parser.add_argument("--heads", type=int, default=4, metavar="N", help="default: 4")
    parser.add_argument("--kind", default="gated", help="of attention, by name (default: gated)")
    parser.add_argument("--prompt", default="ROMEO:\n", help=r"what the sample begins with (default: ROMEO:\n)")
    parser.add_argument("--characters", type=int, default=500, metavar="N", help="length of the sample (default: 500)")
    parser.add_argument("--temperature", type=float, default=0.7, metavar="X", help="of the sample (default: 0.7)")
    parser.add_argument(
        "--threads", type=int, default=1, metavar="N", help="default: 1; on a busy machine more are slower"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="default: 1")
    args = parser.parse_args(argv)
    for name in ("updates", "batch_size", "segment", "threads"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(args, name)}: expected at least 1")
    for name in ("lr", "temperature"):
        if not 0 < getattr(args, name) < math.inf:
            parser.error(f"--{name} {getattr(args, name)}: expected more than 0")
    return args


def streams(text: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Cuts a text into rows of equal length: the characters that are read, and those that follow them."""
    length = (len(text) - 1) // rows
    return text[: rows * length].view(rows, length), text[1 : rows * length + 1].view(rows, length)


def loss_of(logits: Tensor, following: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), following.flatten())


def train(model: FastWeightDecoder, text: Tensor, args: argparse.Namespace):
    """Trains, and yields the loss of each update."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda update: min(1, (update + 1) / WARMUP) * (0.55 + 0.45 * math.cos(math.pi * update / args.updates)),
    )
    read, following = streams(text, args.batch_size)
    state, place = None, 0
    for _ in range(args.updates):
        model.train()
        if place + args.segment > read.shape[1]:  # the streams have ended and begin anew, with nothing written
            state, place = None, 0
        piece = slice(place, place + args.segment)
        logits, state = model(read[:, piece], state)
        loss = loss_of(logits, following[:, piece])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        state = [layer.detach() for layer in state]
        place += args.segment
        yield loss.item()


@torch.no_grad()
def evaluate(model: FastWeightDecoder, text: Tensor) -> float:
    """The mean loss of a text that is read in segments, as in training."""
    model.eval()
    read, following = streams(text, EVALUATED_STREAMS)
    state, total = None, 0.0
    for place in range(0, read.shape[1], EVALUATED_SEGMENT):
        piece = slice(place, place + EVALUATED_SEGMENT)
        logits, state = model(read[:, piece], state)
        total += loss_of(logits, following[:, piece]).item() * following[:, piece].numel()
    return total / following.numel()


@torch.no_grad()
def sample(model: FastWeightDecoder, prompt: Tensor, count: int, temperature: float):
    """Yields characters that follow the prompt; memory and time of a character are the same at any length."""
    model.eval()
    logits, state = model(prompt[None])
    logits = logits[:, -1]
    for _ in range(count):
        token = torch.multinomial((logits / temperature).softmax(-1), 1)[:, 0]
        yield token.item()
        logits, state = model.step(token, state)


class Refused(Exception):
    """Why there is nothing to train, and the exit status."""


def read_text(args: argparse.Namespace) -> str:
    path = args.out / "input.txt"
    try:
        provide(TINY_SHAKESPEARE, path, print)
    except RecipeError as error:
        raise Refused(error, 1) from None
    text = path.read_text(encoding="utf-8")
    if not args.prompt:
        raise Refused("--prompt: expected at least one character", 2)
    if unknown := sorted(set(args.prompt) - set(text)):
        raise Refused(f"--prompt: {unknown} are not in the text", 2)
    return text


def build(args: argparse.Namespace, characters: int) -> FastWeightDecoder:
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    if args.kind == "softmax":
        raise Refused("--kind softmax: its state grows with the text, expected fast weights", 2)
    try:
        model = FastWeightDecoder(
            args.kind, characters, embed_dim=args.embed_dim, num_heads=args.heads, num_layers=args.layers
        )
    except ValueError as error:
        raise Refused(error, 2) from None
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"{count:,} parameters, {characters} characters, {torch.get_num_threads()} threads", flush=True)
    return model


def train_and_evaluate(model: FastWeightDecoder, data: Tensor, args: argparse.Namespace) -> dict:
    """Trains, and evaluates ten times on the end of the text; returns what ``losses.json`` says."""
    training, held_out = data.split([len(data) - int(len(data) * HELD_OUT), int(len(data) * HELD_OUT)])
    if args.batch_size * args.segment >= len(training):
        given = f"--batch-size {args.batch_size} --segment {args.segment}"
        raise Refused(f"{given}: expected a product below {len(training)}, the characters to train on", 2)
    began, losses, valid = time.perf_counter(), [], {}
    every = max(1, args.updates // 10)
    for update, loss in enumerate(train(model, training, args), 1):
        losses.append(loss)
        if update % every == 0 or update == args.updates:
            valid[update] = evaluate(model, held_out)
            mean = sum(losses[-every:]) / len(losses[-every:])
            seconds = time.perf_counter() - began
            line = f"update {update:5d}  training loss {mean:.3f}  held-out loss {valid[update]:.3f}  {seconds:4.0f} s"
            print(line, flush=True)
    seconds = round(time.perf_counter() - began)
    return {"updates": args.updates, "seconds": seconds, "valid": valid, "training": losses}


def picture(losses: list[float], valid: dict[int, float]) -> bytes:
    every = max(1, len(losses) // 10)
    means = {i + every: (sum(losses[i : i + every]) / every, None) for i in range(0, len(losses) - every + 1, every)}
    held = {update: (loss, None) for update, loss in valid.items()}
    curves = [Series("training", "training", means), Series("held out", "held out", held)]
    return draw(Plot("updates", "nats per character", curves, log_x=0), "svg")


def run(args: argparse.Namespace) -> None:
    text = read_text(args)
    characters = sorted(set(text))
    number = {character: i for i, character in enumerate(characters)}
    model = build(args, len(characters))
    report = train_and_evaluate(model, torch.tensor([number[character] for character in text]), args)
    torch.save({"characters": characters, "model": model.state_dict()}, args.out / "model.pt")
    write_atomically(args.out / "losses.json", (json.dumps(report) + "\n").encode())
    try:
        write_atomically(args.out / "losses.svg", picture(report["training"], report["valid"]))
    except ImportError:
        print("matplotlib is not installed, so there is no picture: pip install matplotlib; losses.json has the losses")
    prompt = torch.tensor([number[character] for character in args.prompt])
    written = "".join(characters[token] for token in sample(model, prompt, args.characters, args.temperature))
    write_atomically(args.out / "sample.txt", (args.prompt + written + "\n").encode())
    print(f"\n{args.prompt}{written}\n\nlosses and sample are in {args.out}")


def main(argv: list[str] | None = None) -> int:
    try:
        run(arguments(argv))
        return 0
    except Refused as refused:
        problem, status = refused.args
        print(f"tiny_shakespeare: error: {problem}", file=sys.stderr)
        return status
    except OSError as error:
        print(f"tiny_shakespeare: error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
