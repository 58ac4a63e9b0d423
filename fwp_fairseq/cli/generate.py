"""Continues a text with a trained language model, token by token, beyond the ends of lines.

  fwp generate checkpoint_best.pt --data data-lm --prompt "T h e ▁" --length 500 --top-p 0.9 --remove-bpe sentencepiece

The prompt has to be encoded as the training text was, with spaces between its symbols. The model keeps its fast weights
of the text, whatever the length; only the memory of softmax attention and fairseq's table of sinusoidal positions grow
with it. fairseq-interactive samples as well, but stops at the end of a line.
"""

from pathlib import Path

from .errors import CommandError, UsageError
from .plugin import import_plugin


def add_arguments(parser) -> None:
    parser.add_argument("checkpoint", metavar="CKPT")
    parser.add_argument("--data", required=True, metavar="DIR", help="folder with the dict.txt of the training")
    parser.add_argument("--prompt", default="", metavar="TEXT", help="how the text begins (default: a new line)")
    parser.add_argument("--length", type=int, default=200, metavar="N", help="tokens to add (default: 200)")
    parser.add_argument("--temperature", type=float, default=1.0, metavar="X", help="(default: 1)")
    parser.add_argument("--top-k", type=int, metavar="N", help="only the N likeliest tokens; 1 takes the likeliest")
    parser.add_argument("--top-p", type=float, metavar="X", help="only the likeliest tokens that make up X of all")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="(default: 1)")
    parser.add_argument(
        "--remove-bpe", metavar="KIND", help="join pieces as fairseq does: sentencepiece, subword_nmt, letter, ..."
    )
    parser.add_argument("--cpu", action="store_true", help="even where there is a GPU")


def _check(args) -> None:
    for flag, value, fits, expected in (
        ("--length", args.length, args.length >= 0, "0 or more"),
        ("--temperature", args.temperature, args.temperature > 0, "more than 0"),
        ("--top-k", args.top_k, args.top_k is None or args.top_k >= 1, "1 or more"),
        ("--top-p", args.top_p, args.top_p is None or 0 < args.top_p <= 1, "more than 0, at most 1"),
    ):
        if not fits:
            raise UsageError(f"{flag} {value}: expected {expected}")
    for path in (Path(args.checkpoint), Path(args.data) / "dict.txt"):
        if not path.is_file():
            raise CommandError(f"{path}: no such file")


def choose(log_probabilities, temperature: float, top_k: int | None, top_p: float | None, generator) -> int:
    """Draws a token from softmax(log_probabilities / temperature), restricted to the likeliest ones."""
    import torch

    values, tokens = (log_probabilities.double() / temperature).sort(descending=True)
    if top_k is not None:
        values = values[:top_k]
    chances = values.softmax(-1)
    if top_p is not None:  # the first token that reaches top_p is one of them
        chances = chances[: int((chances.cumsum(-1) < top_p).sum()) + 1]
    return int(tokens[torch.multinomial(chances, 1, generator=generator)])


def sample(model, dictionary, prompt: list[int], args):
    """Yields ``args.length`` tokens that follow the prompt."""
    import torch

    device = next(model.parameters()).device
    generator = torch.Generator(device=device).manual_seed(args.seed)
    state: dict = {}
    token, behind = dictionary.eos(), iter(prompt)
    with torch.no_grad():
        for position in range(1, len(prompt) + args.length + 1):
            # fairseq reads the last token only and takes its position from the length; the view needs no memory.
            read = torch.tensor([[token]], device=device).expand(1, position)
            found = model.decoder(read, incremental_state=state)
            token = next(behind, None)
            if token is None:
                scores = model.get_normalized_probs(found, log_probs=True)[0, -1].float()
                scores[[dictionary.pad(), dictionary.bos()]] = -torch.inf
                token = choose(scores, args.temperature, args.top_k, args.top_p, generator)
                yield token


def run(args) -> int:
    _check(args)
    import_plugin()
    import torch
    from fairseq.data.data_utils import post_process

    from .checkpoint import load_model

    model, task = load_model(args.checkpoint, args.data, translates=False)
    dictionary = task.target_dictionary
    prompt = dictionary.encode_line(args.prompt, add_if_not_exist=False, append_eos=False).tolist()
    unknown = [symbol for symbol, token in zip(args.prompt.split(), prompt, strict=True) if token == dictionary.unk()]
    if unknown:
        raise UsageError(
            f"--prompt: {unknown[0]!r} is no symbol of {args.data}/dict.txt; encode it as the training text"
        )
    limit = model.max_positions()
    if len(prompt) + args.length > limit:
        raise UsageError(
            f"--length {args.length}: prompt and continuation have {len(prompt) + args.length} tokens, expected at "
            f"most the {limit} positions of this model"
        )
    model.to("cpu" if args.cpu or not torch.cuda.is_available() else "cuda")
    model.eval()
    model.make_generation_fast_()
    line = [dictionary[token] for token in prompt]

    def write(end: str) -> None:
        text = " ".join(line)
        print(post_process(text, args.remove_bpe) if args.remove_bpe else text, end=end, flush=True)
        line.clear()

    for token in sample(model, dictionary, prompt, args):
        if token == dictionary.eos():
            write("\n")
        else:
            line.append(dictionary[token])
    write("\n")
    return 0
