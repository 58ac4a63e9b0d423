import pytest


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ("--feature-map dpfp --d-key 64 --d-dot 256", "nu = 2"),
        ("--feature-map favor --m 128", "d_dot = 256"),
        ("--feature-map favor --d-dot 384 --d-key 16", "m = 192"),
        ("--feature-map elu --d-key 17 --d-dot 17", "d_dot = 17"),
    ],
)
def test_conversion(fwp, arguments, expected):
    assert fwp("d-dot", *arguments.split()).out == f"{expected}\n"


@pytest.mark.parametrize(
    "arguments, named",
    [
        ("--feature-map dpfp --d-dot 200", ["200", "128", "256"]),
        ("--feature-map cosine --d-dot 64", ["cosine", "dpfp"]),
        ("--d-dot 64", ["--feature-map"]),
        ("--nu 2 --m 3", ["--nu", "--m"]),
    ],
)
def test_impossible(refused, arguments, named):
    message = refused(2, "d-dot", *arguments.split())
    assert all(name in message for name in named), message
