"""The last line of an error names the flag or file, what was expected and what was found."""

import hashlib
import re
import shutil
from pathlib import Path

import pytest

from tests.full_disk import full_disk

ONE = ["--max-update", 1, "--disable-validation"]


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def assert_nothing_was_written(tools) -> None:
    assert not any(tools.folder.glob("nothing/*"))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--fwp-feature-map", "rbf"], ["--fwp-feature-map", "'rbf'", "softmax", "elu", "dpfp", "favor"]),
        (["--fwp-update-rule", "hebb"], ["--fwp-update-rule", "'hebb'", "sum", "delta", "gated"]),
        (["--fwp-d-dot", "70"], ["--fwp-d-dot 70", "--fwp-feature-map dpfp", "d_key = 16", "64 and 96"]),
        (["--fwp-feature-map", "favor", "--fwp-cross-d-dot", "7"], ["--fwp-cross-d-dot 7", "favor", "6 and 8"]),
        (
            ["--fwp-feature-map", "softmax", "--fwp-update-rule", "delta"],
            ["--fwp-update-rule delta", "--fwp-feature-map softmax"],
        ),
        (
            ["--fwp-decoder-feature-map", "softmax", "--fwp-decoder-update-rule", "delta"],
            ["--fwp-decoder-update-rule delta", "--fwp-decoder-feature-map softmax"],
        ),
    ],
    ids=["map", "rule", "width", "width-of-site", "softmax", "softmax-of-site"],
)
def test_flags(tools, flags, words):
    found = tools.train("nothing", *ONE, *flags)
    for word in words:
        assert word in found.error
    assert_nothing_was_written(tools)


def test_missing_data(tools):
    found = tools.train("nothing", *ONE, "--train-subset", "nowhere")
    assert "nowhere" in found.error and "bin" in found.error
    assert_nothing_was_written(tools)


def test_missing_folder(tools):
    found = tools.run("train", "no-such-folder", *tools.training[1:], *ONE, "--save-dir", "nothing")
    assert "no-such-folder" in found.error
    assert_nothing_was_written(tools)


def test_missing_checkpoint(tools):
    assert "no-such-checkpoint.pt" in tools.generate("no-such-checkpoint.pt").error


def train_on(tools, name: str, *arguments):
    """Goes on with a copy of the shared training, because fairseq writes and removes a file in --save-dir."""
    shutil.copytree(tools.folder / "favor", tools.folder / name)
    before = digests(tools.folder / name)
    found = tools.train(name, "--max-update", 100, *tools.attention["favor"], *arguments)
    assert digests(tools.folder / name) == before
    return found


def test_other_attention_flags(tools, favor):
    found = train_on(tools, "other-flags", "--fwp-cross-normalizer", "both")
    for words in ("other-flags/checkpoint_last.pt", "other attention flags", "normalizer=attention", "normalizer=both"):
        assert words in found.error


def test_other_architecture(tools, favor):
    found = train_on(tools, "other-layers", "--encoder-layers", 3)
    assert "checkpoint other-layers/checkpoint_last.pt does not fit the model" in found.error
    assert "encoder.layers.2.self_attn.k_proj.weight" in found.error


def test_truncated_checkpoint(tools, favor):
    folder = tools.folder / "truncated"
    folder.mkdir()
    content = (tools.folder / "favor/checkpoint_last.pt").read_bytes()
    (folder / "checkpoint_last.pt").write_bytes(content[: len(content) // 2])
    before = digests(folder)
    found = tools.train("truncated", *ONE, *tools.attention["favor"])
    assert "truncated/checkpoint_last.pt" in found.error and "truncated or not a checkpoint" in found.error
    assert digests(folder) == before
    (folder / "empty.pt").write_bytes(b"")
    (folder / "text.pt").write_text("not a checkpoint\n")
    for name in ("empty", "text"):
        assert f"truncated/{name}.pt cannot be read" in tools.generate(f"truncated/{name}.pt").error


SMALL_DISK = full_disk(200_000)
# The checkpoint fits on the disk, but its copies do not.
NO_ROOM_FOR_COPIES = """
import errno, os, shutil
def copyfile(source, target):
    with open(source, "rb") as old, open(target, "wb") as new:
        new.write(old.read(100_000))
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target)
shutil.copyfile = copyfile
"""


@pytest.mark.parametrize("prelude", [SMALL_DISK, NO_ROOM_FOR_COPIES], ids=["saving", "copying"])
def test_full_disk(tools, prelude, request):
    save_dir = f"full.{request.node.callspec.id}"
    folder = tools.folder / save_dir
    arguments = [save_dir, *tools.attention["mixed"], "--save-interval-updates", 2, "--max-update"]
    tools.train(*arguments, 2).ok()
    before = digests(folder)
    assert {"checkpoint_last.pt", "checkpoint_best.pt", "checkpoint_1_2.pt"} == before.keys()
    found = tools.train(*arguments, 4, prelude=prelude)
    assert re.search(rf"{save_dir}/checkpoint\S*\.pt", found.error)
    after = digests(folder)
    after.pop("checkpoint_1_4.pt", None)
    assert after == before
    again = tools.train(*arguments, 4).ok()
    assert "@ 2 updates" in again.out
    assert tools.load(f"{save_dir}/checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] == 4
    assert tools.load(f"{save_dir}/checkpoint_best.pt")["model"]
    assert not list(folder.glob("*.tmp"))


# The first attempt to save fails after some bytes.
DISTURBED = """
import time, torch
save, calls = torch.save, []
def disturbed(obj, file, *args, **kwargs):
    calls.append(file)
    if len(calls) == 1:
        file.write(b"x" * 1000)
        raise OSError("the network file system is away")
    return save(obj, file, *args, **kwargs)
torch.save, time.sleep = disturbed, lambda seconds: None
"""


def test_disturbed_saving_starts_again(tools):
    tools.train("disturbed", *ONE, *tools.attention["favor"], prelude=DISTURBED).ok()
    assert tools.load("disturbed/checkpoint_last.pt")["model"]
    assert (tools.folder / "disturbed/checkpoint_last.pt").read_bytes()[:1] != b"x"
