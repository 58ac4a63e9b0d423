"""Keeps integer buffers out of the moving average of parameters (--store-ema).

Symptom: --store-ema fails, or averages the seeds of random features.
Cause: fairseq averages every entry of the model's state.
Test: tests/fairseq_tools/test_options.py::test_equivalent[backend-workers-and-ema]
"""

from fairseq.models.ema.ema import EMA


def mend() -> None:
    initialize = EMA.__init__

    def initialize_and_skip(self, model, *args, **kwargs):
        initialize(self, model, *args, **kwargs)
        integers = {name for name, tensor in model.named_buffers() if not tensor.is_floating_point()}
        self.skip_keys = set(self.skip_keys) | integers

    EMA.__init__ = initialize_and_skip
