"""Fast-weight (linear) attention for fairseq: feature maps, update rules, normalisers and the models that use them.

Used as ``fairseq-train --user-dir fwp_fairseq --arch ...``; ``fwp_fairseq.ops`` and ``fwp_fairseq.feature_maps`` need
torch alone and can be imported without fairseq.
"""

from ._user_dir import UserDir

__version__ = "0.3.0"
__path__ = UserDir(__path__, __name__)
