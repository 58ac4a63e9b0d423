"""The criterion of attention transfer, which trains only the feature maps of a converted model."""

import logging

import torch
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor, nn

from ..modules.attention_transfer import AttentionTransfer
from ..options import TRANSLATION_SITES

logger = logging.getLogger(__name__)


@register_criterion("attention_transfer", dataclass=FairseqDataclass)
class AttentionTransferCriterion(FairseqCriterion):
    """Trains the feature maps of a model so that its fast weights imitate softmax attention with the same projections.

    The model is one that ``fwp convert`` made from a softmax model; :class:`AttentionTransfer` defines what is
    compared. The loss is the mean distance over all queries in all layers, in nats; the mean of each site is also
    logged. There is no dropout, because the softmax model translates without it.
    """

    def prepare_model(self, model: nn.Module) -> None:
        """Freezes everything except the feature maps; ``mends/prepared_models.py`` calls this before training."""
        learned = list(AttentionTransfer(model).parameters())
        model.requires_grad_(False)
        for parameter in learned:
            parameter.requires_grad_(True)
        logger.info(f"attention_transfer trains {sum(map(torch.numel, learned)):,} parameters of feature maps")

    def forward(self, model: nn.Module, sample: dict, reduce: bool = True):
        """Returns fairseq's (loss, sample_size, logging_output); sample_size counts each query once per layer."""
        model.eval()
        inputs = sample["net_input"]
        if "segment" in inputs:
            raise ValueError(
                "--criterion attention_transfer contradicts --task fwp_language_modeling, which reads in segments; "
                "expected --task language_modeling"
            )
        encoder, decoder = inputs["src_tokens"], inputs.get("prev_output_tokens", inputs["src_tokens"])
        pads = {site: (encoder if site == "encoder" else decoder).eq(self.padding_idx) for site in TRANSLATION_SITES}
        with AttentionTransfer(model).compared(pads) as distances:
            model(**inputs, features_only=True)
        sums = {site: torch.stack([distance.sum() for distance in layers]).sum() for site, layers in distances.items()}
        queries = {site: len(layers) * int(pads[site].logical_not().sum()) for site, layers in distances.items()}
        loss, sample_size = sum(sums.values()), sum(queries.values())
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise ValueError(
                "--criterion attention_transfer: no gradient reaches the feature maps; --checkpoint-activations "
                "contradicts it, drop that flag"
            )
        return (
            loss,
            sample_size,
            {
                "loss": loss.detach(),
                "ntokens": sample["ntokens"],
                "nsentences": len(encoder),
                "sample_size": sample_size,
                **{f"loss_{site}": distance.detach() for site, distance in sums.items()},
                **{f"queries_{site}": number for site, number in queries.items()},
            },
        )

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict]) -> None:
        def total(name: str) -> Tensor | float:
            return sum(log.get(name, 0) for log in logging_outputs)

        metrics.log_scalar("loss", total("loss") / total("sample_size"), total("sample_size"), round=4)
        for site in TRANSLATION_SITES:
            if queries := total(f"queries_{site}"):
                metrics.log_scalar(f"loss_{site}", total(f"loss_{site}") / queries, queries, round=4)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True
