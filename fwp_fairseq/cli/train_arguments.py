"""The arguments of `fwp train`, and what is refused before anything is prepared."""

from pathlib import Path

from ..files import refuse_interpreted
from ..option import hyphens
from . import bleu_tokenizer
from .baseline import BASELINES, model_flags
from .beginning import Beginning
from .errors import UsageError, refuse_outside
from .paragraphs import add_passage
from .recipe import SETTINGS, unfitting
from .significance import check_seed

# The flags of fairseq-train that the steps after the training rely on.
_OWN = ("--arch", "--save-dir", "--no-save", "--source-lang", "--target-lang", "--user-dir", "--finetune-from-model")
_OWN += ("--task", "--dataset-impl", "--checkpoint-suffix", "--log-format")
# Flags with which the same command could not continue its training.
_ENDING = ("--restore-file", "--no-last-checkpoints", "--no-save-optimizer-state", "--reset-optimizer")
_ENDING += ("--reset-lr-scheduler", "--reset-dataloader", "--reset-meters")
_OWN_LETTERS = ("-a", "-s", "-t")  # architecture and languages, which may follow without a space
# Options from 0 to 1 whose invalid values fairseq-train refuses in the first update or not at all.
_SHARES = ("dropout", "attention_dropout", "activation_dropout", "encoder_layerdrop", "decoder_layerdrop")
_SHARES += ("label_smoothing",)


def add_arguments(parser) -> None:
    parser.add_argument("--texts", required=True, type=Path, metavar="DIR")
    parser.add_argument("--source", required=True, metavar="LANGUAGE", help="suffix of the source files, such as en")
    parser.add_argument("--target", required=True, metavar="LANGUAGE", help="suffix of the target files")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder for checkpoints and scores")
    parser.add_argument(
        "--data", type=Path, metavar="DIR",
        help="folder for the SentencePiece model and binarised texts, which trainings can share (default: --out)",
    )  # fmt: skip
    add_passage(parser, "join lines into passages of at most N words (default: do not join lines)")
    parser.add_argument("--arch", metavar="NAME", help="architecture (default: a hybrid chosen by the corpus size)")
    parser.add_argument("--max-update", type=int, metavar="N", help="updates (default: chosen by the corpus size)")
    parser.add_argument(
        "--minutes", type=float, metavar="N", help="stop each training after N minutes, and choose its updates to fit"
    )
    parser.add_argument(
        "--vocabulary",
        type=int,
        metavar="N",
        help="number of SentencePiece pieces (default: chosen by the corpus size)",
    )
    parser.add_argument(
        "--finetune-from", type=Path, metavar="MODEL",
        help="fine-tune this checkpoint, which may come from fwp convert, or the one in this folder",
    )  # fmt: skip
    parser.add_argument(
        "--baseline", nargs="?", const="softmax", choices=BASELINES,
        help="also train softmax attention, and compare: fairseq's Transformer (softmax, which is the default), or one "
        "with rotary positions",
    )  # fmt: skip
    bleu_tokenizer.add_argument(parser)
    parser.add_argument("--cpu", action="store_true", help="use the CPU even if there is a GPU")
    parser.add_argument("flags", nargs="*", metavar="-- FLAG", help="flags for fairseq-train")


def check(args) -> None:
    """Refuses arguments that make no sense, without reading files or importing fairseq."""
    refuse_outside(args, 1, "--passage", "--max-update", "--vocabulary")
    if args.minutes is not None and not 0 < args.minutes < 1e6:
        raise UsageError(f"--minutes {args.minutes:g}: expected more than 0")
    if args.flags and not args.flags[0].startswith("-"):
        raise UsageError(f"{args.flags[0]}: expected flags alone; those of fairseq-train come after --")
    if own := [word for word in args.flags if word.partition("=")[0] in _OWN or word.startswith(_OWN_LETTERS)]:
        raise UsageError(
            f"{own[0]} after -- contradicts fwp train, which sets it itself, because its later steps rely on it "
            "(it has --out, --arch, --source, --target and --finetune-from)"
        )
    if ending := [word for word in args.flags if word.partition("=")[0] in _ENDING]:
        raise UsageError(
            f"{ending[0]} after --: the same command could not continue; to continue from another checkpoint, copy it "
            "to checkpoints/checkpoint_last.pt in --out"
        )
    if args.finetune_from and (other := [n for n in ("arch", "vocabulary", "baseline") if getattr(args, n)]):
        raise UsageError(f"--finetune-from and --{other[0]}: the checkpoint has its own model and pieces")
    if args.baseline:
        check_seed()  # the comparison at the end needs it
    for flag, folder in (("--out", args.out), ("--data", args.data or args.out)):
        try:
            refuse_interpreted(folder.resolve())
        except ValueError as error:
            raise UsageError(f"{flag} {error}") from None


def check_architecture(args) -> None:
    """Refuses an architecture that cannot translate, before anything is prepared."""
    from fairseq.models import ARCH_MODEL_REGISTRY, FairseqEncoderDecoderModel

    model = FairseqEncoderDecoderModel if args.arch is None else ARCH_MODEL_REGISTRY.get(args.arch, object)
    if not issubclass(model, FairseqEncoderDecoderModel):
        what = "does not translate" if args.arch in ARCH_MODEL_REGISTRY else "is unknown"
        raise UsageError(f"--arch {args.arch} {what}; expected a translation model, as `fwp archs` lists them")
    if args.baseline and args.arch:
        model_flags(args.baseline, args.arch)


def check_flags_after(args, beginning: Beginning | None) -> None:
    """Refuses flags after -- that fairseq-train would refuse, before anything is prepared."""
    from fairseq import options

    from ..config import check_flags
    from .trial import without

    def refuse(message: str):
        raise UsageError(f"{message} (among the flags after --, which fairseq-train gets)")

    arch = beginning.model.get("_name") if beginning else args.arch or "fwp_transformer_tiny_hybrid"
    parser = options.get_training_parser()
    parser.error = refuse
    settings = without(SETTINGS, unfitting(args.flags))
    try:
        parsed = options.parse_args_and_arch(parser, ["data", "--arch", arch, *settings, *args.flags])
        if hasattr(parsed, "fwp_decoder"):
            check_flags(parsed)
        for name in _SHARES:
            if not 0 <= (share := getattr(parsed, name, None) or 0) < 1:
                raise ValueError(f"--{hyphens(name)} {share:g}: expected at least 0 and less than 1")
    except ValueError as error:
        refuse(str(error))
