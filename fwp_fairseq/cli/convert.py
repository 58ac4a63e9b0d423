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

from ..checkpoint_content import architecture
from ..checkpoint_model import build
from ..files import write_atomically
from ..option import hyphens
from ..options import OPTIONS, SITES
from ..text import printable
from . import archs
from .checkpoint import drop_training_state, load, refuse_output, save
from .errors import CommandError, UsageError
from .parameters import complete, refuse_not_finite
from .plugin import import_plugin
from .training_flags import training_flags

# The parameters of attention that fairseq's own does not have.
_OURS = re.compile(r".*_attn\.(?!(q|k|v|out)_proj\.|bias_[kv]$).*")
# The models that can be converted, each with the model of this plugin that has all of its parameters by the same names.
_FAMILIES = {
    "fwp_transformer": "fwp_transformer",
    "fwp_lm": "fwp_lm",
    "transformer": "fwp_transformer",
    "transformer_lm": "fwp_lm",
}


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


def _default_flags(arch: str) -> dict:
    """Returns the attention flags of an architecture's model, with their defaults."""
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY

    fields = MODEL_DATACLASS_REGISTRY[ARCH_MODEL_NAME_REGISTRY[arch]].__dataclass_fields__
    return {name: archs.enum_value(field.default) for name, field in fields.items() if name.startswith("fwp_")}


def _resolved(options) -> dict:
    from omegaconf import OmegaConf

    if isinstance(options, argparse.Namespace):
        options = vars(options)
    if OmegaConf.is_config(options):
        options = OmegaConf.to_container(options, resolve=True, enum_to_str=True)
    return {name: archs.enum_value(value) for name, value in options.items()}


def _refuse_control_characters(path: Path, options: dict) -> None:
    """Raises CommandError, because the options become words of a command line and lines of output."""
    for name, value in options.items():
        if printable(f"{name}{value}") != f"{name}{value}":
            raise CommandError(f"--input {path}: option {name} is {value!r}, expected a text of one line")


def _architectures(path: Path, options: dict) -> tuple[str, str]:
    """Returns (the checkpoint's architecture, the converted model's architecture)."""
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY

    old = architecture(options)
    model = ARCH_MODEL_NAME_REGISTRY.get(old, old)
    if model not in _FAMILIES:
        raise CommandError(f"--input {path} is of model {model}, expected one of {', '.join(_FAMILIES)}")
    family = _FAMILIES[model]
    if model == family:
        return old, old
    same_sizes = _FAMILIES.get(old, f"fwp_{old}")
    return old, same_sizes if ARCH_MODEL_NAME_REGISTRY.get(same_sizes) == family else family


def _model_options(cfg: dict, old: str, new: str) -> dict:
    """Returns every option of the converted model, except attention flags that the checkpoint does not have."""
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY

    options = cfg["model"]
    if isinstance(options, argparse.Namespace):  # a legacy model, whose defaults fairseq too fills in when it loads it
        options = argparse.Namespace(**vars(options))
        ARCH_CONFIG_REGISTRY[old](options)
    checkpoint_options = _resolved(options)
    task = _resolved(cfg["task"])
    converted: dict = {"_name": new}
    for name, field in MODEL_DATACLASS_REGISTRY[ARCH_MODEL_NAME_REGISTRY[new]].__dataclass_fields__.items():
        if name in checkpoint_options:
            converted.setdefault(name, checkpoint_options[name])
        elif not name.startswith(("_", "fwp_")):
            default = archs.enum_value(field.default)
            if isinstance(default, str) and default.startswith("${"):
                default = task.get(default[2:-1].rpartition(".")[2])
            converted[name] = default
    return converted


def _attention_flags(before: dict, defaults: dict, args) -> dict:
    """Returns the converted model's attention flags: those given, else the checkpoint's, else the defaults.

    A flag for all sites replaces the same option of single sites, and a feature map for all sites replaces all of their
    options. Options of a site without a kind change what the checkpoint has there.
    """
    from ..config import attention_of_flags, with_common

    chosen_flags = {name: archs.enum_value(value) for name, value in vars(args).items() if name.startswith("fwp_")}
    chosen_flags = {name: value for name, value in chosen_flags.items() if value is not None}
    for name in chosen_flags.keys() - defaults.keys():
        flags = ", ".join(f"--{hyphens(known)}" for known in defaults)
        raise CommandError(f"--{hyphens(name)}: this model has no such site, expected some of {flags}")
    kept = {} if args.reset else {name: value for name, value in before.items() if value is not None}
    flags, cfg = defaults | kept | chosen_flags, argparse.Namespace(**chosen_flags)
    for site in SITES:
        name, chosen = f"fwp_{site}", attention_of_flags(cfg, site)
        if "fwp_feature_map" in chosen_flags:
            flags[name] = chosen_flags.get(name)
        elif name in kept and chosen.kind is None:
            was = attention_of_flags(argparse.Namespace(**kept), site)
            flags[name] = str(with_common(cfg, site, was).changed(chosen.changes)) or None
    return {name: flags[name] for name in defaults}


def _own_parameters(parameters: dict, model, before: argparse.Namespace, after: argparse.Namespace) -> dict:
    """Returns the parameters that fairseq's attention lacks, from the checkpoint if it has them, else of the new model.

    ``before`` and ``after`` are the options of the checkpoint and of the converted model.
    """
    from ..config import site_options
    from ..modules import BuiltAttention, FastWeightSiteAttention

    own, old_options, new_options = {}, site_options(before), site_options(after)
    modules = model.named_modules()
    attentions = {f"{name}.": module for name, module in modules if isinstance(module, BuiltAttention)}
    for prefix, attention in attentions.items():
        new = {prefix + name: tensor for name, tensor in attention.state_dict().items()}
        kept = {}
        if isinstance(attention, FastWeightSiteAttention):
            mine, theirs = new_options[attention.site], old_options.get(attention.site)
            for deciding, entries in attention.memory.entries_by_options().items():
                same = theirs is not None and all(getattr(mine, name) == getattr(theirs, name) for name in deciding)
                names = [f"{prefix}memory.{name}" for name in entries]
                # All are kept or none, because random features belong to the seed that is saved with them.
                fits = all(name in parameters and parameters[name].shape == new[name].shape for name in names)
                kept |= dict.fromkeys(names, same and fits)
        dtype = parameters[f"{prefix}q_proj.weight"].dtype
        learned = {prefix + name for name, _ in attention.named_parameters()}
        for name, tensor in new.items():
            if name in kept:
                # Random directions stay float32.
                own[name] = parameters[name] if kept[name] else tensor.to(dtype) if name in learned else tensor
            elif _OURS.fullmatch(name):
                old = parameters.get(name)
                fits = old is not None and old.shape == tensor.shape
                own[name] = old if fits else tensor.to(dtype) if name in learned else tensor
    return own


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
    cfg = _resolved(state["cfg"])
    if absent := {"model", "task"} - cfg.keys():
        raise CommandError(f"--input {args.input}: expected the options cfg.{min(absent)} in it")
    model_options = _resolved(cfg["model"])
    _refuse_control_characters(args.input, model_options)
    old_arch, same_sizes = _architectures(args.input, model_options)
    options = _model_options(cfg, old_arch, same_sizes)
    defaults = _default_flags(same_sizes)
    before = defaults | ({n: options[n] for n in defaults if n in options} or {"fwp_feature_map": "softmax"})

    refuse_not_finite(args.input, state["model"])
    parameters = complete(args.input, state["model"], options | before)
    try:
        after = _attention_flags(before, defaults, args)
        options |= after
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(args.seed)
            model = build(options, parameters)
    except ValueError as error:
        raise CommandError(
            f"{error} (flags that were not given keep the checkpoint's values; --reset forgets those)"
        ) from None
    old_cfg, new_cfg = (argparse.Namespace(**(options | flags)) for flags in (before, after))
    own = _own_parameters(parameters, model, old_cfg, new_cfg)
    kept = {name: tensor for name, tensor in parameters.items() if not _OURS.fullmatch(name)}
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
