"""Language modelling on contiguous streams of text, with fast weights carried from one segment to the next."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from fairseq import utils
from fairseq.data import data_utils
from fairseq.data.indexed_dataset import get_available_dataset_impl
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingTask
from omegaconf import II

from ..models.fwp_language_model import FwpLanguageModel
from ..models.transformer_xl import TransformerXlLanguageModel
from .stream_iterator import StreamIterator
from .streams import Streams, Text, cut

StateChoice = ChoiceEnum(["carried", "reset"])
# No stream has 2 to this power batches.
_MOST_DOUBLINGS = 30


# Optional[X], not X | None: fairseq's parser reads types by their printed form. Fields without a help text make no
# flags; models look them up.
@dataclass
class FwpLanguageModelingConfig(FairseqDataclass):
    data: Optional[str] = field(default=None, metadata={"help": "folder of binarised text"})
    tokens_per_sample: int = field(
        default=1024,
        metadata={"help": "tokens of a segment; softmax sites do not look beyond it, and positions start anew in each"},
    )
    max_target_positions: Optional[int] = field(
        default=None, metadata={"help": "learned positions (default: --tokens-per-sample)"}
    )
    output_dictionary_size: int = field(default=-1, metadata={"help": "limit the size of output dictionary"})
    fwp_state: StateChoice = field(
        default="carried",
        metadata={
            "help": "the state with which a segment begins; carried: the fast weights (or Transformer-XL's memory) "
            "after the previous segment of its stream; reset: an empty state, with the same batches"
        },
    )
    fwp_carry_doubling: int = field(
        default=0,
        metadata={
            "help": "N > 0: training first empties the states after every batch; every N updates, it doubles the "
            "number of batches over which they are carried; validation always carries them through a whole stream"
        },
    )
    add_bos_token: bool = False
    dataset_impl: Optional[ChoiceEnum(get_available_dataset_impl())] = II("dataset.dataset_impl")


@register_task("fwp_language_modeling", dataclass=FwpLanguageModelingConfig)
class FwpLanguageModelingTask(LanguageModelingTask):
    """fairseq's language modelling with different batches: row b contains the next segment of stream b.

    There are ``--batch-size`` streams per process; an epoch reads each of them from beginning to end, in order.
    Validation and fairseq-eval-lm do the same with their texts, starting from empty states, and score every token once.
    """

    @classmethod
    def setup_task(cls, args, **kwargs):
        if args.tokens_per_sample < 1:
            raise ValueError(f"--tokens-per-sample {args.tokens_per_sample}: expected 1 or more")
        if args.fwp_carry_doubling < 0:
            raise ValueError(f"--fwp-carry-doubling {args.fwp_carry_doubling}: expected 0 or more")
        if args.fwp_carry_doubling and str(args.fwp_state) == "reset":
            raise ValueError(
                f"--fwp-carry-doubling {args.fwp_carry_doubling} contradicts --fwp-state reset, which carries nothing: "
                "expected one of them"
            )
        if args.add_bos_token:
            raise ValueError(
                "add_bos_token: true contradicts fwp_language_modeling, whose segments continue each other"
            )
        return super().setup_task(args, **kwargs)

    def build_model(self, args, from_checkpoint=False):
        arch = getattr(args, "arch", None) or getattr(args, "_name", None)
        if not issubclass(ARCH_MODEL_REGISTRY.get(arch, object), FwpLanguageModel | TransformerXlLanguageModel):
            raise ValueError(
                f"--task fwp_language_modeling: actual architecture {arch}, expected one of fwp_lm or "
                "transformer_xl_lm; --task language_modeling serves others"
            )
        return super().build_model(args, from_checkpoint)

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs) -> None:
        folders = utils.split_paths(self.args.data)
        path = str(Path(folders[(epoch - 1) % len(folders)]) / split)
        sentences = data_utils.load_indexed_dataset(path, self.dictionary, self.args.dataset_impl, combine=combine)
        if sentences is None:
            raise FileNotFoundError(f"Dataset not found: {split} ({path})")
        self.datasets[split] = Text(sentences)

    def get_batch_iterator(self, dataset, **options):
        """Iterates over the streams of a text or, as fairseq's own task, over sentences of fairseq-interactive."""
        iterate = self._iterate_streams if isinstance(dataset, Text) else super().get_batch_iterator
        return iterate(dataset, **options)

    def _iterate_streams(
        self,
        text: Text,
        max_tokens: int | None = None,
        max_sentences: int | None = None,
        num_shards: int = 1,
        shard_id: int = 0,
        num_workers: int = 0,
        epoch: int = 1,
        data_buffer_size: int = 0,
        skip_remainder_batch: bool = False,
        disable_iterator_cache: bool = False,
        **unused,
    ) -> StreamIterator:
        """Ignores fairseq's arguments for the order of batches, which is the order of the text."""
        if not max_sentences or max_sentences < 0:
            raise ValueError(
                "--task fwp_language_modeling cuts the text into --batch-size streams for each process: expected "
                f"--batch-size N of at least 1, actual {'none' if max_sentences is None else max_sentences}"
            )
        length = self.args.tokens_per_sample
        if max_tokens is not None and max_tokens < max_sentences * length:
            raise ValueError(
                f"--max-tokens {max_tokens} (in validation --max-tokens-valid): {max_sentences} rows (--batch-size) of "
                f"{length} tokens (--tokens-per-sample) are more; drop it or lower one"
            )
        rows = max_sentences * num_shards
        # As in fairseq, one iterator and the processes that load its data serve all epochs, unless each epoch has
        # another text.
        kept, key = {} if disable_iterator_cache else self.dataset_to_epoch_iter, (text, rows, shard_id)
        if key not in kept:
            kept[key] = StreamIterator(
                Streams(text, cut(len(text), rows, length), self.dictionary, len(self.output_dictionary)),
                shard_id,
                num_shards,
                carries=str(self.args.fwp_state) == "carried",
                num_workers=num_workers,
                epoch=epoch,
                buffer_size=data_buffer_size,
                skip_remainder_batch=skip_remainder_batch,
                reuse_dataloader=True,
            )
        return kept[key]

    def train_step(self, sample, model, criterion, optimizer, update_num, ignore_grad=False):
        if self.args.fwp_carry_doubling:
            batches = 2 ** min(update_num // self.args.fwp_carry_doubling, _MOST_DOUBLINGS)
            sample["net_input"]["segment"].horizon = batches * self.args.tokens_per_sample
        return super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad)

    def inference_step(self, generator, models, sample, **more):
        if "segment" in sample["net_input"]:
            raise ValueError(
                "--task fwp_language_modeling reads a text in segments, which no hypothesis can begin with: "
                "fairseq-interactive continues texts, and fairseq-eval-lm scores them"
            )
        return super().inference_step(generator, models, sample, **more)

    def eval_lm_dataloader(
        self,
        dataset: Text,
        max_tokens: int | None = None,
        batch_size: int | None = None,
        max_positions: int | None = None,
        num_shards: int = 1,
        shard_id: int = 0,
        num_workers: int = 1,
        data_buffer_size: int = 10,
        context_window: int = 0,
    ):
        """Reads the whole text as one stream unless ``batch_size`` says otherwise."""
        if context_window > 0:
            raise ValueError(
                f"--context-window {context_window} contradicts --task fwp_language_modeling, which carries its "
                "context along: drop it, or use --task language_modeling for a sliding window"
            )
        return self.get_batch_iterator(
            dataset,
            max_sentences=1 if batch_size is None else batch_size,
            num_shards=num_shards,
            shard_id=shard_id,
            num_workers=num_workers,
            data_buffer_size=data_buffer_size,
        ).next_epoch_itr(shuffle=False)
