"""Fast-weight (linear) attention for fairseq: feature maps, update rules, normalisers and the models that use them.

Used as ``fairseq-train --user-dir fwp_fairseq --arch ...``; ``fwp_fairseq.ops``, ``fwp_fairseq.feature_maps`` and
``fwp_fairseq.layers`` need only torch and can be imported without fairseq.
"""

from ._user_dir import UserDir

__version__ = "0.3.0"
__path__ = UserDir(__path__, __name__)
