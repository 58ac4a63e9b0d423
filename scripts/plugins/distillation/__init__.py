"""For fairseq's --user-dir: the criterion `distillation`, which trains a converted model to do what its original did.

RADLADS (Goldstein et al. 2025) trains converted language models so, first on hidden states and then on predictions;
here both are learned at once.
"""

import argparse
from dataclasses import dataclass, field
from pathlib import Path

import torch
from fairseq import checkpoint_utils, utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from omegaconf import MISSING

utils.import_user_module(argparse.Namespace(user_dir=str(Path(__file__).resolve().parents[3] / "fwp_fairseq")))


@dataclass
class DistillationConfig(FairseqDataclass):
    teacher: str = field(default=MISSING, metadata={"help": "checkpoint of the model whose predictions are learned"})


@register_criterion("distillation", dataclass=DistillationConfig)
class Distillation(FairseqCriterion):
    """The loss of a token is KL(p' || p) + mean over decoder layers of ||h - h'||^2 / ||h'||^2, in nats.

    p are the model's probabilities of the next token and h its outputs of a layer at the token, p' and h' those of the
    teacher, which has as many layers, of the same width.
    """

    def __init__(self, task, teacher: str):
        super().__init__(task)
        models, _ = checkpoint_utils.load_model_ensemble([teacher], task=task)
        self.teacher = [models[0].eval().requires_grad_(False)]  # a list, so that checkpoints do not hold it

    def forward(self, model, sample, reduce=True):
        inputs = sample["net_input"]
        with torch.no_grad():
            expected, shown = self.teacher[0](**inputs)
        actual, own = model(**inputs)
        tokens = sample["target"].ne(self.padding_idx)
        p, q = expected[tokens].log_softmax(-1), actual[tokens].log_softmax(-1)
        kl = (p.exp() * (p - q)).sum()
        layers = [
            ((h - good).square().sum(-1) / good.square().sum(-1))[tokens.T].sum()
            for h, good in zip(own["inner_states"][1:], shown["inner_states"][1:], strict=True)
        ]
        hidden = torch.stack(layers).mean()
        loss, size = kl + hidden, sample["ntokens"]
        logs = {"loss": loss.detach(), "kl": kl.detach(), "hidden": hidden.detach(), "sample_size": size}
        return loss, size, logs | {"ntokens": size, "nsentences": len(tokens)}

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict]) -> None:
        size = sum(log["sample_size"] for log in logging_outputs)
        for name in ("loss", "kl", "hidden"):
            metrics.log_scalar(name, sum(log[name] for log in logging_outputs) / size, size, round=4)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True
