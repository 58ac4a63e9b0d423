"""The settings of fairseq-train that fit the size of a corpus."""

import argparse
from dataclasses import dataclass
from functools import cached_property

from ..kinds import PASSAGES
from ..option import hyphens
from .corpus import LARGE

SETTINGS = [
    *("--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr-scheduler", "inverse_sqrt"),
    *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1", "--clip-norm", "1"),
    *("--patience", "10", "--no-epoch-checkpoints", "--num-workers", "0", "--skip-invalid-size-inputs-valid-test"),
    *("--required-batch-size-multiple", "1"),  # otherwise fairseq leaves a last batch of fewer than 8 out
]
# Settings that belong to a choice, which the user may replace by one that does not have them.
_OF_CHOICES = {"optimizer": "adam_betas", "criterion": "label_smoothing", "lr_scheduler": "warmup_updates"}
_EPOCHS, _FEWEST_UPDATES, _MOST_UPDATES = 12, 1000, 100_000
_FURTHER = 4  # a training that goes on from a checkpoint takes a quarter of the epochs, a third of the learning rate
_FEW_EPOCHS, _VALIDATIONS = 5, 8  # a training of so few epochs is validated within them, so many times in all
_FEW = 100_000  # words; without much dropout, a model would learn the sentences of a smaller corpus by heart
NO_SINUSOIDS = "--no-token-positional-embeddings"
_LONGEST = 2048  # tokens of a line to train on; the memory for cross-attention grows with their square


def unfitting(flags: list[str]) -> list[str]:
    """Lists the settings that the optimizer, criterion or scheduler among the user's flags does not have."""
    from fairseq import criterions, optim  # noqa: F401  (registers them)
    from fairseq.optim import lr_scheduler  # noqa: F401
    from fairseq.registry import REGISTRIES

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for choice in _OF_CHOICES:
        parser.add_argument(f"--{hyphens(choice)}")
    chosen = vars(parser.parse_known_args(flags)[0])
    lacking = []
    for choice, setting in _OF_CHOICES.items():
        theirs = argparse.ArgumentParser(add_help=False)
        if cls := REGISTRIES[choice]["registry"].get(chosen[choice]):
            cls.add_args(theirs)
            if all(action.dest != setting for action in theirs._actions):
                lacking.append(f"--{hyphens(setting)}")
    return lacking


@dataclass(frozen=True)
class Recipe:
    """The settings of fairseq-train that fit a corpus.

    - words: of its target language, to train on.
    - lengths: of the pairs to train on, in tokens, the longer side of each.
    - tokens: of the target language, to train on.
    - further: whether the training goes on from a checkpoint.
    - passages: whether lines are joined.
    """

    words: int
    lengths: list[int]
    tokens: int
    further: bool = False
    passages: bool = False

    @cached_property
    def positions(self) -> int:
        return min(max(1024, max(self.lengths)), _LONGEST)

    @property
    def small(self) -> bool:
        return self.words < LARGE

    @property
    def dropout(self) -> tuple[str, str]:
        """The dropout, and why: fairseq's Transformer and the hybrid have the same, as both did best with the same."""
        if self.words < _FEW:
            return "0.3", f"fewer than {_FEW:,} words"
        if self.small:
            return "0", "small models with either attention did better without, on 100,000 words or more"
        return "0.1", "the architectures' own"

    @property
    def max_tokens(self) -> int:
        """The tokens of a batch; at least _LONGEST."""
        return 2500 if self.small else 8000

    @property
    def updates(self) -> int:
        fitting = min(max(self.tokens * _EPOCHS // self.max_tokens, _FEWEST_UPDATES), _MOST_UPDATES)
        return fitting // _FURTHER if self.further else fitting

    def intervals(self, updates: int) -> list[str]:
        """Returns flags by which a training of few epochs is validated and saved several times."""
        if updates * self.max_tokens >= _FEW_EPOCHS * sum(self.lengths):
            return []
        every = str(max(1, updates // _VALIDATIONS))
        return ["--save-interval-updates", every, "--keep-interval-updates", "1"]

    def arch(self) -> str:
        return f"fwp_transformer_{'tiny' if self.small else 'iwslt_de_en'}_hybrid"

    def attention(self, arch: str | None, flags: list[str]) -> dict[str, str]:
        """Returns the flags of attention that fit passages, unless the user or a checkpoint chooses the attention."""
        chosen = arch or self.further or any(flag.startswith("--fwp-") for flag in flags)
        if chosen or not self.passages:
            return {}
        return {f"--fwp-{site}": kind for site, kind in PASSAGES.items()}

    def sinusoids(self, attention: dict[str, str], flags: list[str]) -> list[str]:
        """Returns the flag that leaves sinusoids out with the attention of passages, unless the user chooses positions.

        This attention knows positions by its decay, its convolutions and rotation. Sinusoids beyond the lengths that
        were trained on mislead it.
        """
        chosen = any("learned-pos" in flag for flag in flags)
        return [NO_SINUSOIDS] if attention and not chosen else []

    def flags(self, arch: str | None, max_update: int | None, is_timed: bool = False) -> dict[str, str]:
        """Returns flags of fairseq-train: for small corpora a tiny model and a high learning rate.

        The warm-up is a fifth of the updates that fit the corpus, whatever ``max_update`` is, so that a training can go
        on with a larger one. If ``is_timed`` (--minutes), it is at most a fifth of ``max_update``, because a rate that
        is still rising when the time is over would be wasted. The training ends earlier if the loss on valid no longer
        falls (--patience).
        """
        warmup = min(self.updates // 5, 4000)
        if is_timed and max_update:
            warmup = min(warmup, max(1, max_update // 5))
        rate = {(True, False): "3e-3", (True, True): "1e-3", (False, False): "5e-4", (False, True): "1.7e-4"}
        return {
            "--arch": arch or self.arch(),
            "--dropout": self.dropout[0],
            "--lr": rate[self.small, self.further],
            "--warmup-updates": str(warmup),
            "--max-tokens": str(self.max_tokens),
            "--max-source-positions": str(self.positions),
            "--max-target-positions": str(self.positions),
            "--max-update": str(max_update or self.updates),
        }
