from types import SimpleNamespace
from unittest import mock

import pytest
from fairseq.tasks import FairseqTask

from fwp_fairseq.mends import long_lines


def test_the_flags_that_a_longer_line_needs_are_those_of_the_task():
    task = FairseqTask(SimpleNamespace(max_target_positions=None, tokens_per_sample=8))
    lines = mock.Mock(**{"filter_indices_by_size.return_value": ([], [0])})
    for training, end in ((None, "{'max_target_positions': N, 'tokens_per_sample': N}\""), (long_lines, " N")):
        with (
            mock.patch.object(long_lines, "program", lambda _, found=training: found),
            pytest.raises(ValueError) as error,
        ):
            task.filter_indices_by_size([0], lines, max_positions=8)
        assert "take it with --max-target-positions N --tokens-per-sample N" in str(error.value)
        assert str(error.value).endswith(end)
