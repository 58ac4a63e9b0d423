"""Makes records of a user's own trainings from the checkpoints, logs and translations in a folder."""

import fnmatch
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ..checkpoint_content import architecture, plain, section
from ..checkpoint_model import build_known
from ..options import SITES
from ..tables.trainings import FIELDS
from . import archs, training_logs, training_scores
from .bleu_tokenizer import bleu_metric
from .checkpoint import load
from .errors import CommandError
from .paragraphs import read_lines
from .training_scores import TestSet
from .translations import about_form

# The sections of a checkpoint's configuration that are equal in trainings that differ in the seed alone.
_RECIPE = ("model", "task", "criterion", "optimizer", "lr_scheduler", "optimization", "dataset")
_WIDTH = re.compile(r",?d-dot=\d+")  # in the kind of a site
_ELSEWHERE = ("common", "checkpoint", "distributed_training")
_HARMLESS = {"num_workers", "data_buffer_size", "fwp_backend"}


def records_of(folders: list[Path], references: Path | None = None, tokenizer: str | None = None) -> list[dict]:
    """Returns a record of every save-dir at any depth of the folders.

    With ``references``, sacreBLEU scores the translations found there, by ``tokenizer`` or that of their script; else
    BLEU is the score that fairseq-generate printed. Raises CommandError for a checkpoint that cannot be read.
    """
    test = None
    if references is not None:
        texts = [line.rstrip() for line in read_lines(references)]
        if form := about_form(references, texts):
            print(form, file=sys.stderr)
        test = TestSet(texts, bleu_metric(texts, tokenizer))
    if absent := [folder for folder in folders if not folder.is_dir()]:
        raise CommandError(f"{absent[0]}: expected save-dirs, actual no such folder")
    records, known = [], set()
    folders = [folder.resolve() for folder in folders]  # a run has a name even if its folder is given as `checkpoints`
    above = Path(os.path.commonpath(folders))
    for save_dir in dict.fromkeys(save_dir for folder in folders for save_dir in sorted(_save_dirs(folder))):
        records.append(_training(save_dir, above, test))
    for record in records:
        if (record["recipe"], record["seed"]) in known:  # a repeated training gets a row of its own
            record["recipe"] += record["name"]
            record["line"] += record["name"]
        known.add((record["recipe"], record["seed"]))
    return records


def _save_dirs(folder: Path) -> Iterator[Path]:
    """Yields the folders that have checkpoints, also behind links, which may lead in circles."""
    seen = set()
    for name, inner, files in os.walk(folder, followlinks=True):
        if (place := os.path.realpath(name)) in seen:
            inner.clear()
            continue
        seen.add(place)
        if fnmatch.filter(files, "checkpoint*.pt"):
            yield Path(name)


def _newest(save_dir: Path) -> Path:
    last = save_dir / "checkpoint_last.pt"
    return last if last.is_file() else max(save_dir.glob("checkpoint*.pt"), key=lambda path: path.stat().st_mtime)


def _training(save_dir: Path, above: Path, test: TestSet | None) -> dict:
    """Returns the record of a training, whose name is its path below the folder ``above``."""
    run, checkpoint = save_dir.parent if save_dir.name == "checkpoints" else save_dir, _newest(save_dir)
    name = run.relative_to(above).as_posix() if run.is_relative_to(above) else run.name
    state = load(checkpoint, mmap=True)
    own = plain((state.get("cfg") or {}).get("checkpoint") or {}).get("save_dir")
    prepared = run / "prepared.json"  # describes the data of fwp train, whose path differs from training to training
    try:
        fields = _fields_of_checkpoint(state, prepared.read_text() if prepared.is_file() else None)
    except (TypeError, ValueError, AttributeError, LookupError) as error:  # a stranger's may be anything
        raise CommandError(f"{checkpoint}: its options and counters are not those of a training: {error}") from None
    return (
        dict.fromkeys(FIELDS)
        | fields
        | training_logs.validations([*run.glob("*.log"), run.with_name(f"{run.name}.log")], own)
        | training_scores.scored(_outputs(run, save_dir), test)
        | {"name": run.name if name == "." else name}
    )


def _fields_of_checkpoint(state: dict, data: str | None) -> dict:
    """Returns the fields that a checkpoint gives; ``data`` describes its data, None if only their path is known."""
    cfg = {name: plain(options or {}) for name, options in (state.get("cfg") or {}).items() if name != "_name"}
    extra, history = state.get("extra_state") or {}, state.get("optimizer_history") or [{}]
    model = section(state, "model")
    cfg |= {"model": model}
    # The model section of fairseq's own Transformer repeats every option of the command line.
    others = {name for section in _ELSEWHERE for name in cfg.get(section, {})} | _HARMLESS | {"data"}
    recipe = {part: {n: v for n, v in cfg.get(part, {}).items() if n not in others} for part in _RECIPE}
    recipe["data"] = data or section(state, "task").get("data")
    model_of_line = {name: _WIDTH.sub("", str(x)) for name, x in recipe["model"].items() if "d_dot" not in name}
    begun, counts = section(state, "checkpoint"), [entry.get("num_updates") or 0 for entry in history]
    by_hand = (begun.get("reset_optimizer") and len(history) > 1) or counts != sorted(counts)
    fine_tuned = bool(begun.get("finetune_from_model") or by_hand)
    if fine_tuned:
        recipe["fine_tuned"] = True
    seconds, best = extra.get("previous_training_time"), extra.get("best")
    metric = cfg.get("checkpoint", {}).get("best_checkpoint_metric")
    seed, updates = cfg.get("common", {}).get("seed"), history[-1].get("num_updates")
    return {
        "arch": _shown(architecture(model), model),
        "fine_tuned": fine_tuned,
        "seed": None if seed is None else int(seed),
        "updates": None if updates is None else int(updates),
        "parameters": _parameters(model, state["model"]),
        "train_seconds": None if seconds is None else float(seconds),
        "recipe": _digest(recipe),
        "line": _digest(recipe | {"model": model_of_line}),  # everything but the width of features
        **({f"valid_{metric}": float(best)} if metric in ("loss", "bleu") and best is not None else {}),
        **_attention(model, state["model"]),
    }


def _digest(options: dict) -> str:
    return hashlib.sha256(json.dumps(options, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _shown(arch: str, options: dict) -> str:
    """Returns the architecture, without the name of an attention that flags have replaced."""
    from fairseq.models import ARCH_MODEL_REGISTRY

    if not arch.endswith("_hybrid") or arch not in ARCH_MODEL_REGISTRY:
        return arch
    sites = {name: value for name, value in archs.defaults(arch).items() if name.removeprefix("fwp_") in SITES}
    kept = all(options.get(name) == value for name, value in sites.items())
    return arch if kept else arch.removesuffix("_hybrid")


def _parameters(options: dict, model: dict) -> int:
    """Returns the number of parameters, without buffers; shared parameters count once.

    A checkpoint in half precision has copies of shared parameters, so the model is built to count them, if it is known.
    """
    try:
        built = build_known(options, model)
    except ValueError:  # a row of a table needs no model that works
        built = None
    if built is not None:
        return sum(parameter.numel() for parameter in built.parameters())
    buffers = re.compile(r"(^|\.)(version|attention_flags|_float_tensor)$|\.feature_map\.(seed|projection)$")
    own = {x.untyped_storage().data_ptr(): x.numel() for name, x in model.items() if not buffers.search(name)}
    return sum(own.values())


def _attention(options: dict, parameters: dict) -> dict:
    """Returns the kinds of attention, separated by slashes if sites differ; fairseq's own models have softmax.

    The width of the features stands apart if all sites that have features have the same.
    """
    from ..kinds import Attention
    from ..models import attention_flags

    if attention_flags.BUFFER not in parameters:
        return {"attention": "softmax"}
    kinds, widths = zip(*archs.attention_of(options).values(), strict=True)
    if len({*widths} - {None}) > 1:
        return {"attention": archs.joined(kinds, " / ")}
    width = max((width for width in widths if width), default=None)
    kinds = [Attention(kind.kind, {n: x for n, x in kind.changes.items() if n != "d_dot"}) for kind in kinds]
    return {"attention": archs.joined(kinds, " / "), "d_dot": width}


def _outputs(run: Path, save_dir: Path) -> list[Path]:
    """Finds translations in the folder of the training, or in a subfolder in which there is no other training."""
    folders = {run, save_dir} | {path for path in run.iterdir() if path.is_dir() and not any(_save_dirs(path))}
    kinds = ("generate-*.txt", "gen*.out", "translations.*")
    return [path for folder in folders for kind in kinds for path in folder.glob(kind)]
