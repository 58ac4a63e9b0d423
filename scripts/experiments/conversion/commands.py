"""The exact commands of a conversion, as argument lists. Paths are relative to the repository root."""

from pathlib import Path

from scripts.common.commands import DIRECTION, USER_DIR, device, words_of
from scripts.common.runner.run import Run
from scripts.translation.commands import Gpus, decode
from scripts.translation.preset import SMOKE_DECODING, TINY

from .rows import LR

# Of the transfer, as far as it differs from fine-tuning. Feature maps alone bear a high learning rate.
_TRANSFER = {"--lr": 1e-2, "--warmup-updates": 10, "--criterion": "attention_transfer", "--label-smoothing": None}
LONG_SENTENCES = 10


class ConversionRun(Run):
    """One conversion with one seed."""

    @property
    def model(self) -> Path:
        return Path(self.preset.model.replace("{seed}", str(self.seed)))

    @property
    def updates(self) -> int:
        return self.row.updates or self.preset.updates

    @property
    def stages(self) -> tuple[str, ...]:
        transferred, continued = ["transferred"] * bool(self.row.transfer), ["continued"] * self.row.control
        return ("softmax", "converted", *transferred, "finetuned", *continued)

    def folder(self, stage: str) -> Path:
        return self.path / stage

    def checkpoint(self, stage: str) -> Path:
        if stage == "softmax":
            return self.model
        return self.folder(stage) / ("checkpoint.pt" if stage == "converted" else "checkpoints/checkpoint_last.pt")

    @property
    def flags_file(self) -> Path:
        """The file in which `fwp convert` leaves the flags of fairseq-train."""
        return self.folder("converted") / "flags.json"

    @property
    def subset(self) -> str:
        return "test1" if self.preset.smoke else "test"

    @property
    def sources(self) -> Path:
        """The source sentences of the long outputs."""
        return self.path / "long.en"

    def generated(self, stage: str) -> Path:
        return self.folder(stage) / "generate" / f"generate-{self.subset}.txt"


def convert(run: ConversionRun) -> list[str]:
    return [
        *("fwp", "convert", "--input", str(run.model), "--output", str(run.checkpoint("converted"))),
        *("--seed", str(run.seed), "--flags-json", str(run.flags_file), *words_of(run.row.flags)),
    ]


def _train(run: ConversionRun, gpus: Gpus, stage: str, model: list[str], settings: dict, updates: int) -> list[str]:
    limits = {"--lr": LR, "--total-num-update": updates, "--max-update": updates}
    chosen = run.preset.training | limits | settings
    checkpoints = run.checkpoint(stage).parent
    return [
        *("fairseq-train", f"{run.data}/bin", *USER_DIR, "--task", "translation", *words_of(DIRECTION), *model),
        *words_of(chosen),
        *("--seed", str(run.seed), "--save-dir", str(checkpoints), "--keep-last-epochs", "1"),
        *("--num-workers", "0", "--log-format", "json", *words_of(device(gpus) or {"--distributed-world-size": 1})),
    ]


def _begins_with(checkpoint: Path) -> list[str]:
    return ["--finetune-from-model", str(checkpoint)]


def transfer(run: ConversionRun, gpus: Gpus, model: list[str]) -> list[str]:
    """Returns the command that trains only the feature maps; ``model`` holds the flags of the converted model."""
    model = [*_begins_with(run.checkpoint("converted")), *model]
    return _train(run, gpus, "transferred", model, _TRANSFER, run.row.transfer)


def train(run: ConversionRun, gpus: Gpus, model: list[str]) -> list[str]:
    """Returns the command of the fine-tuning, which begins where the transfer ended if there is one."""
    before = "transferred" if run.row.transfer else "converted"
    return _train(run, gpus, "finetuned", [*_begins_with(run.checkpoint(before)), *model], {}, run.updates)


def control(run: ConversionRun, gpus: Gpus, model: list[str]) -> list[str]:
    """Returns the command that trains the softmax model for as many updates as the converted model in all."""
    kept, own = [], False
    for word in model:
        own = word.startswith("--fwp-") if word.startswith("--") else own
        kept += [] if own else [word]
    model = [*_begins_with(run.model), *kept, *("--fwp-feature-map", "softmax")]
    return _train(run, gpus, "continued", model, {}, run.row.transfer + run.updates)


def generate(run: ConversionRun, gpus: Gpus, stage: str) -> list[str]:
    flags = {"--gen-subset": run.subset} | TINY.decoding | (SMOKE_DECODING if run.preset.smoke else {})
    return _decode(run, gpus, "fairseq-generate", stage, flags | {"--results-path": run.generated(stage).parent})


def generate_long(run: ConversionRun, gpus: Gpus, stage: str) -> list[str]:
    flags = {
        "--input": run.sources,
        "--buffer-size": LONG_SENTENCES,
        "--batch-size": LONG_SENTENCES,
        "--beam": TINY.decoding["--beam"],
        "--min-len": run.preset.long,
        "--max-len-a": 0,
        "--max-len-b": run.preset.long,
    }
    return _decode(run, gpus, "fairseq-interactive", stage, flags)


def _decode(run: ConversionRun, gpus: Gpus, tool: str, stage: str, flags: dict) -> list[str]:
    more = DIRECTION | {"--num-workers": 0, "--log-format": "none"}
    return decode(tool, run, run.checkpoint(stage), flags | more, bool(gpus))


def bleu(run: ConversionRun, stage: str) -> list[str]:
    reference = run.data / "raw" / ("smoke.de" if run.preset.smoke else "test_2016_flickr.de")
    return ["fwp", "bleu", "--hypotheses", str(run.generated(stage)), "--references", str(reference)]
