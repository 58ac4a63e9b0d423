"""Averages the parameters of several checkpoints of one training; the new checkpoint has no optimizer state.

  fwp average --inputs checkpoints/checkpoint{8,9,10}.pt --output checkpoints/average.pt
  fwp average --checkpoint-dir checkpoints --last 5 --output checkpoints/average.pt

--last uses epoch checkpoints (checkpointN.pt) or, if there are none, update checkpoints (checkpoint_E_U.pt). Everything
except the parameters comes from the newest (last) input.
"""

import re
from pathlib import Path

import torch

from ..checkpoint_content import plain, section
from ..kinds import Attention
from ..options import OPTIONS, SITES
from .checkpoint import drop_training_state, load, refuse_output, save
from .errors import CommandError, UsageError
from .parameters import complete, refuse_not_finite
from .plugin import import_plugin

# Options that change the training or the speed, but not the function that the parameters define.
_NOT_KEPT = [name for name, option in OPTIONS.items() if option.kept == "never"]
_HARMLESS = re.compile(
    "dropout|layerdrop|checkpoint_activations|offload|min_params_to_wrap|max_.*_positions|fwp_"
    + "|fwp_".join(_NOT_KEPT)
)


def add_arguments(parser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--inputs", nargs="+", type=Path, metavar="CKPT", help="checkpoints, oldest first")
    source.add_argument("--checkpoint-dir", type=Path, metavar="DIR", help="use the newest --last N in this folder")
    parser.add_argument("--last", type=int, metavar="N", help="the number of checkpoints in --checkpoint-dir to use")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help="the new checkpoint")


def _newest(folder: Path, count: int) -> list[Path]:
    if not folder.is_dir():
        raise CommandError(f"--checkpoint-dir {folder}: no such folder")
    for pattern in (r"checkpoint(\d+)\.pt", r"checkpoint_\d+_(\d+)\.pt"):
        numbered = {int(match[1]): path for path in folder.iterdir() if (match := re.fullmatch(pattern, path.name))}
        if numbered:
            break
    if len(numbered) < count:
        raise CommandError(
            f"--last {count}: {folder} holds {len(numbered)} numbered checkpoints; a training keeps them without "
            "--no-epoch-checkpoints and --keep-last-epochs, or with --save-interval-updates"
        )
    return [numbered[number] for number in sorted(numbered)[-count:]]


def _inputs(args) -> list[Path]:
    if args.inputs is not None:
        if args.last is not None:
            raise UsageError("--last goes with --checkpoint-dir, not with --inputs")
        paths = args.inputs
    else:
        if args.last is None or args.last < 1:
            raise UsageError(f"--checkpoint-dir needs --last N with N at least 1 (got {args.last})")
        paths = _newest(args.checkpoint_dir, args.last)
    resolved = [path.resolve() for path in paths]
    for path in paths:
        if resolved.count(path.resolve()) > 1:
            raise UsageError(f"{path} is given more than once")
    refuse_output(args.output, paths)
    return paths


def _model_options(state: dict) -> dict:
    """Returns the options that define the model.

    The model section of fairseq's own Transformer repeats every option of the command line: those that stand in other
    sections are left out.
    """
    sections = {name: options for name, options in (state.get("cfg") or {}).items() if name not in ("_name", "model")}
    others = {name for options in sections.values() for name in plain(options or {})}
    model = section(state, "model").items()
    options = {name: value for name, value in model if name not in others and not _HARMLESS.search(name)}
    for name in [f"fwp_{site}" for site in SITES if isinstance(options.get(f"fwp_{site}"), str)]:
        attention = Attention.parse(options[name])
        kept = {option: value for option, value in attention.changes.items() if option not in _NOT_KEPT}
        options[name] = str(Attention(attention.kind, kept))
    return options


def _refuse_differences(path: Path, state: dict, first_path: Path, first: dict) -> None:
    """Raises CommandError unless both are checkpoints of one model.

    ``first`` holds the options and parameters of the checkpoint at ``first_path``.
    """
    options, expected = _model_options(state), first["options"]
    for name in sorted(options.keys() | expected.keys()):
        if options.get(name) != expected.get(name):
            raise CommandError(
                f"{path}: model option {name} is {options.get(name)!r}, but {expected.get(name)!r} in {first_path}"
            )
    parameters, others = state["model"], first["parameters"]
    if parameters.keys() != others.keys():
        some = ", ".join(sorted(parameters.keys() ^ others.keys())[:3])
        raise CommandError(f"{path}: other parameters than {first_path}: {some}, ...")
    for name, tensor in parameters.items():
        other = others[name]
        if tensor.shape != other.shape or tensor.dtype != other.dtype:
            raise CommandError(
                f"{path}: {name} is {tuple(tensor.shape)} {tensor.dtype}, "
                f"but {tuple(other.shape)} {other.dtype} in {first_path}"
            )
        if _is_constant(name, tensor) and not torch.equal(tensor, other):
            raise CommandError(
                f"{path}: {name} differs from {first_path}; it is constant within one training, so these checkpoints "
                "come from different trainings"
            )


def _is_constant(name: str, tensor: torch.Tensor) -> bool:
    """Returns True for entries that are copied, not averaged: counters, and the random directions of FAVOR+ and RFA.

    The average of two sets of random directions is not a set of random directions.
    """
    return not tensor.is_floating_point() or name.endswith(".projection")


def average(paths: list[Path]) -> dict:
    """Returns the last checkpoint with the mean parameters of all, summed in float64."""
    sums: dict[str, torch.Tensor] = {}
    first: dict = {}
    for number, path in enumerate(paths, 1):
        print(f"{number}/{len(paths)} {path}", flush=True)
        state = load(path)
        refuse_not_finite(path, state["model"])
        if not first:
            first = {"options": _model_options(state), "parameters": state["model"]}
        else:
            _refuse_differences(path, state, paths[0], first)
        for name, tensor in state["model"].items():
            if not _is_constant(name, tensor):
                sums[name] = sums[name] + tensor if name in sums else tensor.double()
    means: dict[tuple, torch.Tensor] = {}  # by their places in memory, so that shared parameters stay shared
    for name, total in sums.items():
        tensor = state["model"][name]
        place = tensor.data_ptr(), tensor.shape
        state["model"][name] = means.setdefault(place, (total / len(paths)).to(tensor.dtype))
    drop_training_state(state)
    return state


def _refuse_incomplete(path: Path, state: dict) -> None:
    """Raises CommandError if a parameter is missing; checks the plugin's own models only, which it can build."""
    from fairseq.models import ARCH_MODEL_REGISTRY

    options = section(state, "model")
    model = ARCH_MODEL_REGISTRY.get(options.get("_name"))
    if model is not None and model.__module__.startswith("fwp_fairseq."):
        complete(path, state["model"], options)


def run(args) -> int:
    paths = _inputs(args)
    import_plugin()
    state = average(paths)
    _refuse_incomplete(paths[-1], state)
    save(state, args.output)
    print(f"wrote {args.output}")
    return 0
