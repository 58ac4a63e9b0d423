"""fairseq-eval-lm --context-window scores every token with the context in front of it, in whatever order.

fairseq takes the context from the text that the same process collated before, which is then another part of the text.
"""

import torch
from fairseq.data import LMContextWindowDataset

from . import around


def _before(self, index: int) -> torch.Tensor:
    """Returns the last ``context_window`` tokens of the text that stand before item ``index``."""
    last, context = getattr(self, "_latest", (None, None))
    if last != index - 1:  # the item before this one went elsewhere, so the text is read backwards
        context, last = torch.empty(0, dtype=torch.long), index
        while len(context) < self.context_window and last > 0:
            last -= 1
            context = torch.cat([self.dataset[last]["source"], context])
    else:
        context = torch.cat([context, self.dataset[last]["source"]])
    context = context[max(0, len(context) - self.context_window) :]
    self._latest = index, context
    return context


@around(LMContextWindowDataset, "collater", ours=True)
def collate_with_context(_, self, samples):
    contexts = [_before(self, sample["id"]) for sample in samples]
    longer = [
        {
            **sample,
            "source": torch.cat([context, sample["source"]]),
            "target": torch.cat([torch.full_like(context, self.pad_idx), sample["target"]]),
        }
        for sample, context in zip(samples, contexts, strict=True)
    ]
    batch = self.dataset.collater(longer)
    if batch:
        batch["start_indices"] = [len(context) for context in contexts]
        batch["ntokens"] = sum(len(sample["source"]) for sample in samples)
    return batch
