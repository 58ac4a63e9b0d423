"""Rules and maps have the same names in Python and in compiled code."""

import pytest
import torch

from fwp_fairseq.feature_maps import FEATURE_MAPS
from fwp_fairseq.feature_maps.softmax_pair import SoftmaxPair
from fwp_fairseq.ops import RULES

pytestmark = pytest.mark.needs("native")


def test_rules():
    assert torch.ops.fwp.rules() == list(RULES)


def test_maps():
    """Each compiled map is one of Python's, or what is left of one for the operators."""
    named = {cls.kernel for cls in (*FEATURE_MAPS.values(), SoftmaxPair)} - {None}
    assert set(torch.ops.fwp.feature_maps()) == named
