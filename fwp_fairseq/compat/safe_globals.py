"""Registers as safe exactly the classes that fairseq writes into checkpoints and sends between workers.

Torch >= 2.6 loads checkpoints with ``weights_only=True``, which refuses all other classes.
"""

import argparse
import collections
import typing

import numpy as np
import omegaconf
import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.logging import meters
from omegaconf import nodes

# Legacy models store their arguments as a Namespace; --eval-bleu stores its meters as numpy arrays. A checkpoint
# written under numpy 1 names numpy.core, one written under numpy 2 names numpy._core.
checkpoint = [argparse.Namespace, np.ndarray, np.dtype]
checkpoint += [type(np.dtype(t)) for t in (np.bool_, np.int32, np.int64, np.float32, np.float64)]
for function in ("_reconstruct", "scalar"):
    rebuild = getattr((np._core if hasattr(np, "_core") else np.core).multiarray, function)
    checkpoint += [(rebuild, f"{module}.multiarray.{function}") for module in ("numpy._core", "numpy.core")]
# fairseq before 0.9 wrote the meters of a training, which were in another module then.
for meter in (meters.AverageMeter, meters.TimeMeter, meters.StopwatchMeter):
    checkpoint += [meter, (meter, f"fairseq.meters.{meter.__name__}")]
# When several workers resume a training, the first sends the whole state, with its configuration, to the others.
workers = [dict, int, list, str, float, bool, collections.defaultdict, typing.Any]
workers += [distributed_utils._TensorPlaceholder]
workers += [omegaconf.DictConfig, omegaconf.ListConfig, omegaconf.base.ContainerMetadata, omegaconf.base.Metadata]
workers += [value for value in vars(nodes).values() if isinstance(value, type) and issubclass(value, nodes.ValueNode)]
torch.serialization.add_safe_globals(checkpoint + workers)
