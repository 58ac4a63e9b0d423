"""fwp info --state-size: the sizes of the paper's Table 4."""

import json

import pytest

MEDIUM = "fwp_lm_wikitext103_medium"
XL = "transformer_xl --n-layer 16 --d-model 256"


@pytest.mark.parametrize(
    "arguments, millions",
    [
        (MEDIUM, "0.13"),
        (f"{MEDIUM} --fwp-update-rule delta", "0.13"),
        (f"{XL} --mem-len 15 --tokens-per-sample 1", "0.13"),
        (f"{XL} --mem-len 64 --tokens-per-sample 64", "1.05"),
        (f"{XL} --mem-len 128 --tokens-per-sample 128", "2.10"),
        (f"{XL} --mem-len 384 --tokens-per-sample 384", "6.29"),
    ],
)
def test_table_4(fwp, arguments, millions):
    found = fwp("info", "--state-size", *arguments.split())
    assert found.status == 0 and found.out.splitlines()[0].endswith(f" numbers a stream ({millions} M)")


def test_flags_of_the_model(fwp):
    flags = "--fwp-feature-map dpfp --fwp-d-dot 64 --fwp-normalizer both --decoder-layers 2"
    found = json.loads(fwp("info", "--json", "--state-size", MEDIUM, *flags.split()).out)
    assert found["numbers"] == 2 * 8 * 64 * 32
    assert [(part["numbers"], part["counted"]) for part in found["parts"]] == [(32768, True), (2 * 8 * 64, False)]
    # A window of 5 positions keeps their keys and values too, and its denominators beside the values.
    assert json.loads(
        fwp(
            "info",
            "--json",
            "--state-size",
            MEDIUM,
            *flags.replace("both", "auto").split(),
            "--fwp-decoder-window",
            "5",
        ).out
    )["numbers"] == 2 * 8 * (64 * 33 + 2 * 5 * 32)
    # A Delta RNN keeps W, R and its last output, and again that output where it is fed back.
    rnn = f"{MEDIUM} --fwp-update-rule delta --fwp-decoder-fast-net rnn --fwp-decoder-recurrent"
    assert json.loads(fwp("info", "--json", "--state-size", *rnn.split()).out)["numbers"] == 16 * 8 * (2 * 32 + 2) * 32
    softmax = f"{MEDIUM} --fwp-feature-map softmax --tokens-per-sample 384"
    assert json.loads(fwp("info", "--json", "--state-size", *softmax.split()).out)["numbers"] == 16 * 384 * 512


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("", "expected ARCH [flags]"),
        ("fwp_transformer", "architecture 'fwp_transformer': expected one of fwp_lm"),
        (f"{MEDIUM} --fwp-feature-map softmax", "expected --tokens-per-sample N"),
        (f"{MEDIUM} --fwp-d-dot 33", "--fwp-d-dot 33 does not fit --fwp-feature-map elu"),
        (f"{MEDIUM} --no-such-flag", "unrecognized arguments: --no-such-flag"),
        (XL, "the following arguments are required: --mem-len, --tokens-per-sample"),
        (f"{XL} --mem-len -1 --tokens-per-sample 1", "--mem-len -1: expected 0 or more"),
    ],
)
def test_refusals(refused, arguments, message):
    assert message in refused(2, "info", "--state-size", *arguments.split())
