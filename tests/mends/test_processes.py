import pytest
from fairseq.dataclass.configs import FairseqConfig
from fairseq.distributed import utils


@pytest.mark.parametrize(
    "raised, expected, message",
    [
        # As in `fairseq-interactive ... | head`; other connections are those of processes that read data.
        (BrokenPipeError(32, "Broken pipe"), BrokenPipeError, "Broken pipe"),
        (ConnectionResetError(104, "reset"), RuntimeError, "a process that reads data for this one died"),
        (KeyboardInterrupt(), SystemExit, "130"),
    ],
    ids=repr,
)
def test_ends_of_a_process_that_does_not_train(raised, expected, message, caplog):
    def main(cfg):
        raise raised

    with pytest.raises(expected, match=message):
        utils.call_main(FairseqConfig(), main)
    assert caplog.messages in ([], ["interrupted"])
