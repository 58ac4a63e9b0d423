"""The exact commands of the recipe, as argument lists. Paths are relative to the repository root."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scripts.common.commands import USER_DIR, flags_of, words_of
from scripts.data import corpus
from scripts.quickstart import settings

# The settings that differ from the quickstart's, beside the learning rate.
_TRAINING = {"--warmup-updates": 40, "--log-interval": 10}
# Losses are logged as means over several updates, because single ones vary more than a short training gains.
_SMOKE_TRAINING = {"--max-tokens": 1000, "--warmup-updates": 5, "--disable-validation": True}
# Of the transfer, as far as it differs from both. Only feature maps are trained, which bears a high learning rate.
_TRANSFER = {"--lr": 1e-2, "--warmup-updates": 10, "--criterion": "attention_transfer", "--label-smoothing": None}
# The length to which long outputs are forced, at which a state of constant size should be an advantage.
LONG, SMOKE_LONG = 1000, 30
LONG_SENTENCES = 10


@dataclass(frozen=True)
class Recipe:
    data: Path
    path: Path
    softmax: Path
    conversion: tuple[str, ...]
    transfer: int
    updates: int
    lr: float
    control: bool
    seed: int
    smoke: bool
    device: tuple[str, ...]

    @property
    def stages(self) -> tuple[str, ...]:
        transferred, continued = ["transferred"] * bool(self.transfer), ["continued"] * self.control
        return ("softmax", "converted", *transferred, "finetuned", *continued)

    def folder(self, stage: str) -> Path:
        return self.path / stage

    @property
    def converted(self) -> Path:
        return self.folder("converted") / "checkpoint.pt"

    @property
    def transferred(self) -> Path:
        return self.folder("transferred") / "checkpoints/checkpoint_last.pt"

    @property
    def finetuned(self) -> Path:
        return self.folder("finetuned") / "checkpoints/checkpoint_last.pt"

    @property
    def continued(self) -> Path:
        return self.folder("continued") / "checkpoints/checkpoint_last.pt"

    @property
    def subset(self) -> str:
        return "test1" if self.smoke else "test"

    @property
    def sources(self) -> Path:
        """The source sentences of the long outputs."""
        return self.path / "long.en"

    @property
    def long(self) -> int:
        return SMOKE_LONG if self.smoke else LONG

    def generated(self, stage: str) -> Path:
        return self.folder(stage) / "generate" / f"generate-{self.subset}.txt"


def convert(recipe: Recipe) -> list[str]:
    return [
        *("fwp", "convert", "--input", str(recipe.softmax), "--output", str(recipe.converted)),
        *("--seed", str(recipe.seed), *recipe.conversion),
    ]


def _train(recipe: Recipe, model: list[str], settings_: dict, updates: int, checkpoint: Path) -> list[str]:
    limits = {"--lr": recipe.lr, "--total-num-update": updates, "--max-update": updates}
    chosen = settings.TRAINING | _TRAINING | limits | (_SMOKE_TRAINING if recipe.smoke else {}) | settings_
    return [
        *("fairseq-train", f"{recipe.data}/bin", *USER_DIR, "--task", "translation"),
        *("--source-lang", "en", "--target-lang", "de", *model),
        *words_of({flag: value for flag, value in chosen.items() if value is not None}),
        *("--seed", str(recipe.seed), "--save-dir", str(checkpoint.parent), "--keep-last-epochs", "1"),
        *("--num-workers", "0", "--log-format", "json", *recipe.device),
    ]


def transfer(recipe: Recipe, model: list[str]) -> list[str]:
    """The command that trains only the feature maps; ``model`` holds the flags that fwp convert printed."""
    return _train(recipe, model, _TRANSFER, recipe.transfer, recipe.transferred)


def train(recipe: Recipe, model: list[str]) -> list[str]:
    """The command of the fine-tuning, which begins where the transfer ended if there is one."""
    if recipe.transfer:
        model = [str(recipe.transferred) if word == str(recipe.converted) else word for word in model]
    return _train(recipe, model, {}, recipe.updates, recipe.finetuned)


def control(recipe: Recipe, model: list[str]) -> list[str]:
    """The command that trains the softmax model for as many updates as the converted model in all."""
    flags = {flag: value or True for flag, value in flags_of(model).items() if flag and not flag.startswith("--fwp-")}
    flags |= {"--finetune-from-model": recipe.softmax, "--fwp-feature-map": "softmax"}
    return _train(recipe, words_of(flags), {}, recipe.transfer + recipe.updates, recipe.continued)


def _decode(recipe: Recipe, tool: str, checkpoint: Path, flags: dict) -> list[str]:
    return [
        *(tool, f"{recipe.data}/bin", *USER_DIR, "--path", str(checkpoint)),
        *("--source-lang", "en", "--target-lang", "de"),
        *("--bpe", "sentencepiece", "--sentencepiece-model", f"{recipe.data}/{corpus.SENTENCEPIECE}"),
        *words_of(flags),
        *("--num-workers", "0", "--log-format", "none"),
        *(flag for flag in recipe.device if flag == "--cpu"),
    ]


def generate(recipe: Recipe, stage: str, checkpoint: Path) -> list[str]:
    flags = {"--gen-subset": recipe.subset} | settings.DECODING | (settings.SMOKE_DECODING if recipe.smoke else {})
    flags |= {"--results-path": recipe.generated(stage).parent}
    return _decode(recipe, "fairseq-generate", checkpoint, flags)


def generate_long(recipe: Recipe, checkpoint: Path) -> list[str]:
    flags = {
        "--input": recipe.sources,
        "--buffer-size": LONG_SENTENCES,
        "--batch-size": LONG_SENTENCES,
        "--beam": settings.DECODING["--beam"],
        "--min-len": recipe.long,
        "--max-len-a": 0,
        "--max-len-b": recipe.long,
    }
    return _decode(recipe, "fairseq-interactive", checkpoint, flags)


def bleu(recipe: Recipe, stage: str) -> list[str]:
    reference = recipe.data / "raw" / ("smoke.de" if recipe.smoke else "test_2016_flickr.de")
    return [
        *("fwp", "bleu", "--hypotheses", str(recipe.generated(stage))),
        *("--references", str(reference)),
    ]
