"""Changes the attention of a trained checkpoint, for example its feature map, d_dot, update rule or normaliser.

  fwp convert --input softmax/checkpoint_best.pt --output dpfp.pt --fwp-feature-map dpfp --fwp-d-dot 256

The input is a checkpoint of this plugin, or of fairseq's own transformer or transformer_lm, which becomes a
fwp_transformer or fwp_lm of the same size. All parameters that both models have are kept; those of a feature map are
kept if its name and width stay the same. New parameters of gates (all rules except the sum rule), random features
(FAVOR+), learned maps and norms are initialised as in a new model. Options for which you give no flag keep their
values in the checkpoint. A flag for all sites also replaces the same option of single sites, and --fwp-feature-map
replaces all options of single sites.

The optimizer state is dropped. To continue training, use --finetune-from-model, or --restore-file with
--reset-optimizer, together with the printed model flags, which set all options of the converted model that do not come
from the task. --flags-json writes these flags to a file for programs.

The converted model does not compute the same function as the trained one, so it needs fine-tuning. New learned maps can
first be trained on their own to imitate softmax attention (--criterion attention_transfer).
"""

import argparse
import json
import re
import shlex
from collections import Counter
from pathlib import Path

import torch

from ..checkpoint_model import build
from ..files import write_atomically
from ..option import hyphens
from ..options import OPTIONS
from ..text import printable
from .checkpoint import drop_training_state, load, refuse_output, save
from .converted_options import architectures, default_flags, flags_of_sites, options_of_model, resolved
from .converted_parameters import OURS, own_parameters
from .errors import CommandError, UsageError
from .parameters import complete, refuse_not_finite
from .plugin import import_plugin
from .training_flags import training_flags


def add_arguments(parser) -> None:
    import_plugin()
    from fairseq.dataclass.utils import gen_parser_from_dataclass

    from ..config import FastWeightConfig

    parser.add_argument("--input", required=True, type=Path, metavar="CKPT", help="the checkpoint; it is not changed")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help="the new checkpoint")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of new parameters (default: 1)")
    parser.add_argument(
        "--reset",
        action="store_true",
        help="discard the checkpoint's attention flags; flags that are not given have their defaults",
    )
    parser.add_argument(
        "--flags-json",
        type=Path,
        metavar="FILE",
        help='also write {"attention": description, "flags": [word, ...]} for programs that continue the training',
    )
    ours = parser.add_argument_group("attention, as for fairseq-train")
    gen_parser_from_dataclass(ours, FastWeightConfig(), delete_default=True)


def _refuse_control_characters(path: Path, options: dict) -> None:
    """Raises CommandError, because the options become words of a command line and lines of output."""
    for name, value in options.items():
        if printable(f"{name}{value}") != f"{name}{value}":
            raise CommandError(f"--input {path}: option {name} is {value!r}, expected a text of one line")


def _description(path: Path, parameters: dict) -> str:
    """Returns the attention options that the checkpoint describes; "softmax" for fairseq's own model."""
    from ..models import attention_flags

    codes = parameters.get(attention_flags.BUFFER)
    try:
        text = "softmax" if codes is None else attention_flags.text_of(codes)
    except ValueError as error:
        raise CommandError(f"{path}: {error}") from None
    if printable(text) != text:
        raise CommandError(f"{path}: its entry {attention_flags.BUFFER} is not text of one line")
    return text


def _undescribed(cfg: argparse.Namespace) -> list:
    """Returns the options of all sites that the description in a checkpoint leaves out."""
    from ..config import site_options

    names = [name for name, option in OPTIONS.items() if option.kept == "never"]
    return [getattr(options, name) for options in site_options(cfg).values() for name in names]


def _changes(before: dict, after: dict, parameters: dict, converted: dict) -> list[str]:
    """Returns one line for each changed flag and each kind of new or dropped parameter, all layers together."""
    changes = [
        f"--{hyphens(name)}: {'not set' if before[name] is None else before[name]} -> {after[name]}"
        for name in after
        if before[name] != after[name]
    ]
    new = [name for name, tensor in converted.items() if tensor is not parameters.get(name) and "." in name]
    dropped = [name for name in parameters if name not in converted]
    for title, names in (("new", new), ("dropped", dropped)):
        kinds = Counter(re.sub(r"\d+", "*", name, count=1) for name in names)
        changes += [f"{title}: {kind} ({number})" for kind, number in kinds.items()]
    return changes


def convert(state: dict, args) -> tuple[dict, list[str], list[str]]:
    """Returns the converted checkpoint, one line for each change, and the flags to train it; modifies ``state``.

    :func:`complete` names the checkpoint's parameters as fairseq does today, and adds those that it ties to others,
    such as the output projection of shared embeddings; :func:`build` makes the converted model.
    """
    from fairseq.checkpoint_utils import _upgrade_state_dict

    from ..models import attention_flags

    if not (state.get("cfg") or state.get("args")):
        raise CommandError(f"--input {args.input}: expected a configuration in it, cfg or args")
    if not state.get("cfg"):
        state = _upgrade_state_dict(state)  # makes cfg from the args that fairseq wrote before 0.10
    cfg = resolved(state["cfg"])
    if absent := {"model", "task"} - cfg.keys():
        raise CommandError(f"--input {args.input}: expected the options cfg.{min(absent)} in it")
    model_options = resolved(cfg["model"])
    _refuse_control_characters(args.input, model_options)
    old_arch, same_sizes = architectures(args.input, model_options)
    options = options_of_model(cfg, old_arch, same_sizes)
    defaults = default_flags(same_sizes)
    before = defaults | ({n: options[n] for n in defaults if n in options} or {"fwp_feature_map": "softmax"})

    refuse_not_finite(args.input, state["model"])
    parameters = complete(args.input, state["model"], options | before)
    try:
        after = flags_of_sites(before, defaults, args)
        options |= after
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(args.seed)
            model = build(options, parameters)
    except ValueError as error:
        raise CommandError(
            f"{error} (flags that were not given keep the checkpoint's values; --reset forgets those)"
        ) from None
    old_cfg, new_cfg = (argparse.Namespace(**(options | flags)) for flags in (before, after))
    own = own_parameters(parameters, model, old_cfg, new_cfg)
    kept = {name: tensor for name, tensor in parameters.items() if not OURS.fullmatch(name)}
    converted = kept | own | {attention_flags.BUFFER: model.get_buffer(attention_flags.BUFFER)}

    was, now = _description(args.input, parameters), _description(args.input, converted)
    described = was == now and _undescribed(old_cfg) == _undescribed(new_cfg)
    if described and old_arch == same_sizes:
        raise CommandError(f"--input {args.input} has this attention already, nothing was written: [{was}]")
    changes = _changes(before, after, parameters, converted)
    if was != now:
        changes.insert(0, f"attention: [{was}] -> [{now}]")
    flags = training_flags(options, args.input)
    options["_name"] = new_arch = flags[1]
    if old_arch != new_arch:
        changes.insert(0, f"model: {old_arch} -> {new_arch}")

    drop_training_state(state)
    state |= {"args": None, "cfg": cfg | {"model": options}, "model": converted}
    return state, changes, flags


def run(args) -> int:
    if not 0 <= args.seed < 2**64:
        raise UsageError(f"--seed {args.seed}: expected a whole number from 0 to 2^64 - 1")
    refuse_output(args.output, [args.input])
    if args.flags_json is not None:
        refuse_output(args.flags_json, [args.input, args.output], "--flags-json")
    state, changes, flags = convert(load(args.input), args)
    save(state, args.output)
    if args.flags_json is not None:
        flags_file = {"attention": _description(args.output, state["model"]), "flags": flags}
        write_atomically(args.flags_json, json.dumps(flags_file, indent=1) + "\n")
    for line in (*changes, "dropped: the optimizer's state", f"wrote {args.output}", "to train it on:"):
        print(printable(line))
    print(f"  {shlex.join(['--finetune-from-model', printable(args.output), *flags])}")
    return 0
