from unittest import mock

import pytest
from fairseq.dataclass.configs import FairseqConfig
from fairseq.distributed import utils


# As in `fairseq-interactive ... | head`, and Ctrl-C there, after which nothing continues.
@pytest.mark.parametrize("raised, expected", [(BrokenPipeError(), BrokenPipeError), (KeyboardInterrupt(), SystemExit)])
def test_ends_of_a_process_that_does_not_train(raised, expected, caplog):
    with pytest.raises(expected):
        utils.call_main(FairseqConfig(), mock.Mock(side_effect=raised))
    assert caplog.messages == ["interrupted"] * (expected is SystemExit)
