"""Silences start-up warnings about fairseq's own internals, on which a user cannot act.

fairseq calls hydra, omegaconf and torch in ways that newer versions of these deprecate.
"""

import warnings

for message, category in (
    (r"(?s).*Usage of deprecated keyword in package header", UserWarning),
    (r"(?s).*is validated against ConfigStore schema with the same name", UserWarning),
    (r"(?s).*The strict flag in the compose API is deprecated", UserWarning),
    (r"(?s).*The version_base parameter is not specified", UserWarning),
    (r"(?s).*hydra\.experimental", UserWarning),
    (r"(?s).*'pin_memory' argument is set as true but no accelerator is found", UserWarning),
    (r"(?s).*torch\.cuda\.amp\.", FutureWarning),
    (r"`broadcast_buffers` is deprecated", FutureWarning),
):
    warnings.filterwarnings("ignore", message=message, category=category)
