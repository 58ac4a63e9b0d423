#!/usr/bin/env python3
"""Translates a sentence with a model that fairseq-train trained with this plugin, and draws what its attention did.

python examples/translation.py hybrid --sentence "A dog runs in the snow."

draws what the model of `fwp train --out hybrid` does. As in `fwp translate`, the model may also be a checkpoint, --data
is the folder of its dictionaries, and --spm its SentencePiece model, or `none` for a sentence of pieces with spaces
between them. It needs fairseq, matplotlib and sentencepiece. In the folder --out it writes

- cross_attention.svg: the weight that each piece of the translation gives to each piece of the source, in every layer.
  For fast weights these are the products phi(q).phi(k), divided by their sum over the source, averaged over heads. A
  head whose query has no feature in common with the source, as can happen with DPFP, counts as 0.
- writes.svg: how much each position changes the fast weights of each head, |W after - W before|, at every site that has
  them. Under the gated rule this includes what decays. Behind a window, a position is written when it leaves that, so
  that the latest ones have written nothing.
- translation.json: the translation, and the numbers of both pictures.
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

import torch  # noqa: E402

from fwp_fairseq.cli.checkpoint import load_model  # noqa: E402
from fwp_fairseq.cli.errors import CommandError, UsageError, refuse_outside  # noqa: E402
from fwp_fairseq.cli.plugin import import_plugin  # noqa: E402
from fwp_fairseq.cli.translator import checkpoint_in, data_of, pieces_of  # noqa: E402
from fwp_fairseq.files import reason, write_atomically  # noqa: E402


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="a checkpoint, or the folder of one")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the dictionaries (default: searched for)")
    parser.add_argument("--sentence", required=True, metavar="TEXT")
    parser.add_argument("--spm", metavar="FILE", help="SentencePiece model, or none (default: searched for)")
    parser.add_argument("--beam", type=int, default=4, metavar="N", help="hypotheses of the beam search (default: 4)")
    parser.add_argument("--out", type=Path, default=ROOT / "runs/translation", help="default: runs/translation")
    return parser.parse_args(argv)


def translate(model, task, source: torch.Tensor, beam: int) -> torch.Tensor:
    """The best hypothesis of fairseq's beam search, which ends with the end of sentence."""
    generator = task.build_generator([model], argparse.Namespace(beam=beam, max_len_a=1.2, max_len_b=10))
    sample = {"net_input": {"src_tokens": source[None], "src_lengths": torch.tensor([len(source)])}}
    return task.inference_step(generator, [model], sample)[0][0]["tokens"]


def inputs_of_attention(model, source: torch.Tensor, target: torch.Tensor) -> dict:
    """Every attention module's (query, key), time first, when the model reads this translation of this source."""
    found, hooks = {}, []

    def remember(module, positional, named):
        query = named["query"] if "query" in named else positional[0]
        key = named["key"] if "key" in named else positional[1]
        found[module] = query, key

    for layer in [*model.encoder.layers, *model.decoder.layers]:
        for attention in (layer.self_attn, getattr(layer, "encoder_attn", None)):
            if attention is not None:
                hooks.append(attention.register_forward_pre_hook(remember, with_kwargs=True))
    previous = torch.cat([target[-1:], target[:-1]])  # fairseq begins a translation with the end of sentence
    model(source[None], torch.tensor([len(source)]), previous[None])
    for hook in hooks:
        hook.remove()
    return found


def cross_attention(model, inputs: dict) -> list[torch.Tensor]:
    """The weights of each decoder layer, (target, source), averaged over heads."""
    found = []
    for layer in model.decoder.layers:
        if layer.encoder_attn is not None:
            query, key = inputs[layer.encoder_attn]
            found.append(layer.encoder_attn(query, key, key, static_kv=True, need_weights=True)[1][0])
    return found


def writes(attention, key: torch.Tensor) -> torch.Tensor:
    """|W after - W before| of the write of each position of key, (heads, positions); 0 of those in a window."""
    memory, found = attention.memory, []
    state, (k, v, parts) = memory.empty_state(1, key), attention.writes(key)
    for position in zip(k.split(1, 1), v.split(1, 1), *(part.split(1, 1) for part in parts.values()), strict=True):
        k, v, *strengths = position
        # Any queries will do.
        _, after = memory.attend(k, k, v, dict(zip(parts, strengths, strict=True)), state=state, return_state=True)
        found.append((after.W - state.W)[0].flatten(1).norm(dim=1))
        state = after
    later = attention.options.window or 0  # positions after which one is written
    return torch.stack([*found[later:], *(torch.zeros_like(one) for one in found[:later])], dim=1)


def all_writes(model, inputs: dict) -> dict[str, torch.Tensor]:
    """The writes of every attention with one matrix of fast weights, by the name of its place in the model."""
    from fwp_fairseq.memories.window import WindowState
    from fwp_fairseq.modules import FastWeightSiteAttention
    from fwp_fairseq.ops import FastWeights

    found = {}
    for name, module in model.named_modules():
        if not isinstance(module, FastWeightSiteAttention):
            continue
        if module.options.passes == "both-ways" or module.memory.State not in (FastWeights, WindowState):
            print(f"{name}: no matrix that is written from the first position to the last; not in writes.svg")
        else:
            found[name] = writes(module, inputs[module][1])
    return found


def picture(panels: list[tuple], columns: int) -> bytes:
    """Draws matrices, each (title, values, labels of the rows or None, labels of the columns), as an SVG file."""
    from io import BytesIO

    from matplotlib.figure import Figure

    rows = -(-len(panels) // columns)
    width = max(3.0, max(len(across) for *_, across in panels) * 0.25 + 1)
    height = max(2.0, max(len(values) for _, values, *_ in panels) * 0.25 + 1)
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in axes[len(panels) :]:
        unused.remove()
    for (title, values, down, across), place in zip(panels, axes, strict=False):
        image = place.imshow(values, aspect="auto", cmap="Blues", vmin=0)
        place.set_title(title, fontsize=8)
        place.set_xticks(range(len(across)), across, rotation=90, fontsize=6)
        place.set_yticks(range(len(values)), down or range(len(values)), fontsize=6)
        figure.colorbar(image, ax=place).ax.tick_params(labelsize=6)
    file = BytesIO()
    figure.savefig(file, format="svg")
    return file.getvalue()


@torch.no_grad()
def run(args: argparse.Namespace) -> None:
    import_plugin()
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise CommandError(f"{error}; pip install matplotlib") from None
    refuse_outside(args, 1, "--beam")
    checkpoint = checkpoint_in(args.model)
    model, task, data = load_model(checkpoint, lambda task: data_of(checkpoint, task, args.data))
    model.eval()
    pieces = pieces_of(checkpoint, data, args.spm)
    text = args.sentence if pieces is None else " ".join(pieces.encode(args.sentence, out_type=str))
    source = task.source_dictionary.encode_line(text, add_if_not_exist=False, append_eos=True).long()
    target = translate(model, task, source, args.beam)
    heard = [task.source_dictionary[token] for token in source]
    said = [task.target_dictionary[token] for token in target]
    inputs = inputs_of_attention(model, source, target)
    weights, written = cross_attention(model, inputs), all_writes(model, inputs)

    args.out.mkdir(parents=True, exist_ok=True)
    report = {
        "source": heard,
        "translation": said,
        "cross_attention": [layer.tolist() for layer in weights],
        "writes": {name: values.tolist() for name, values in written.items()},
    }
    write_atomically(args.out / "translation.json", (json.dumps(report, ensure_ascii=False) + "\n").encode())
    panels = [(f"decoder layer {number}", layer.tolist(), said, heard) for number, layer in enumerate(weights)]
    if panels:
        write_atomically(args.out / "cross_attention.svg", picture(panels, len(panels)))
    begun = said[-1:] + said[:-1]  # what the decoder's self-attention reads and writes
    panels = [
        (
            f"{name}: heads",
            values.tolist(),
            None,
            begun if ".self_attn" in name and name.startswith("decoder") else heard,
        )
        for name, values in written.items()
    ]
    if panels:
        write_atomically(args.out / "writes.svg", picture(panels, 2))
    print(" ".join(said[:-1]) if pieces is None else "".join(said[:-1]).replace("▁", " ").strip())
    print(f"pictures and numbers are in {args.out}")


def main(argv: list[str] | None = None) -> int:
    try:
        run(arguments(argv))
    except (CommandError, UsageError, OSError) as error:
        print(f"translation: error: {reason(error)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
