"""Faults of disks, processes and inputs. docs/reliability.md refers to these tests.

Each ends with a status that is not 0 and a last line that names the cause, and leaves earlier checkpoints as they were.
"""

import hashlib
import os
import re
import shutil
from pathlib import Path

import pytest
import torch

from tests.full_disk import full_disk

ONE = ["--max-update", 1, "--disable-validation"]


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def copied(tools, name: str, target: str) -> Path:
    """A folder with the files of `name`, which the test may damage."""
    return shutil.copytree(tools.folder / name, tools.folder / target)


def preprocess(tools, source: str, target: str, *arguments, **keywords):
    dictionaries = ("--srcdict", "bin/dict.en.txt", "--tgtdict", "bin/dict.de.txt")
    return tools.run(
        *("preprocess", *tools.user_dir, "-s", "en", "-t", "de", "--destdir", target, *dictionaries),
        *("--trainpref", f"{source}/train", *arguments),
        **keywords,
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--fwp-d-dot", "70"], ["--fwp-d-dot 70", "--fwp-feature-map dpfp", "d_key = 16", "64 and 96"]),
        (["--train-subset", "nowhere"], ["nowhere", "bin"]),
        (
            ["--task", "multilingual_translation", "--lang-pairs", "en-de"],
            ["--arch fwp_transformer_tiny", "multilingual_transformer", "translation_multi_simple_epoch"],
        ),
    ],
    ids=["width", "data", "multilingual"],
)
def test_what_makes_no_sense_is_named(tools, flags, words):
    found = tools.train("nothing", *ONE, *flags, without=("-s", "-t") if "--lang-pairs" in flags else ())
    for word in words:
        assert word in found.error
    assert not any(tools.folder.glob("nothing/*"))


def test_what_is_missing_is_named(tools):
    assert "no-such-folder" in tools.train("nothing", *ONE, data="no-such-folder").error
    assert "no-such-checkpoint.pt" in tools.generate("no-such-checkpoint.pt").error
    found = tools.train("nothing", *ONE, "--no-save", "--restore-file", "no-such.pt").ok()
    assert "--restore-file no-such.pt: no such checkpoint; the training begins with new parameters" in found.out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--fwp-cross", "normalizer=both"], ["other attention flags", "normalizer=attention", "normalizer=both"]),
        (["--encoder-layers", 3], ["encoder.layers.2.self_attn.k_proj.weight"]),
        (["--arch", "transformer_iwslt_de_en"], ["--arch transformer_iwslt_de_en, actual --arch fwp_transformer_tiny"]),
    ],
    ids=["attention", "layers", "architecture"],
)
def test_another_training_in_the_save_dir(tools, favor, flags, words, request):
    name = f"other-{request.node.callspec.id}"
    before = digests(copied(tools, "favor", name))
    own = tools.attention["favor"]
    if "--arch" in flags:
        usual = list(tools.training)
        usual[usual.index("--arch") + 1] = flags[1]
        found = tools.run("train", *usual, "--save-dir", name, "--max-update", 100)
    else:
        found = tools.train(name, "--max-update", 100, *own, *flags)
    for word in (f"checkpoint {name}/checkpoint_last.pt does not fit the model", "--save-dir", *words):
        assert word in found.error
    assert digests(tools.folder / name) == before


INTERRUPTED = """
import os, signal
from fairseq.trainer import Trainer
signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells take from programs in the background
step = Trainer.train_step
def interrupted(self, *args, **kwargs):
    if self.get_num_updates() == 1:
        os.kill(os.getpid(), signal.SIGINT)
    return step(self, *args, **kwargs)
Trainer.train_step = interrupted
"""


def test_ctrl_c_is_one_line(tools):
    found = tools.train("interrupted", "--max-update", 9, prelude=INTERRUPTED)
    assert found.status == 130 and "Traceback" not in found.err
    assert "interrupted; the same command continues from the last checkpoint" in found.out.splitlines()[-1]


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
    assert "@ 2 updates" in tools.train(*arguments, 4).ok().out
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


# It is killed when half of the checkpoint is written.
KILLED = """
import io, os, signal, torch
save = torch.save
def half(obj, file, *arguments, **keywords):
    whole = io.BytesIO()
    save(obj, whole, *arguments, **keywords)
    file.write(whole.getvalue()[: whole.tell() // 2])
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
torch.save = half
"""


def test_killed_while_saving(tools, favor):
    folder = copied(tools, "favor", "killed-in-saving")
    before = digests(folder)
    one_more = [*tools.attention["favor"], "--max-update", 76, "--disable-validation", "--no-epoch-checkpoints"]
    assert tools.train("killed-in-saving", *one_more, prelude=KILLED).status == -9
    after = digests(folder)
    assert after.pop("checkpoint_last.pt.tmp") and after == before
    assert "@ 75 updates" in tools.train("killed-in-saving", *one_more).ok().out
    assert tools.load("killed-in-saving/checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] == 76
    assert not list(folder.glob("*.tmp"))


class Hostile:
    def __reduce__(self):
        return os.system, ("touch RAN",)


def test_checkpoint_with_code(tools, favor):
    folder = copied(tools, "favor", "hostile")
    state = tools.load("favor/checkpoint_last.pt")
    state["extra_state"]["hostile"] = Hostile()
    torch.save(state, folder / "checkpoint_last.pt")
    before = digests(folder)
    found = tools.train("hostile", *ONE, *tools.attention["favor"])
    assert "hostile/checkpoint_last.pt is refused: reading it would run posix.system" in found.error
    assert not (tools.folder / "RAN").exists() and digests(folder) == before


def test_nan_names_the_update_and_what_to_change(tools):
    diverging = ["--lr", 1e30, "--warmup-updates", 1, "--max-update", 9]
    found = tools.train("nan", "--disable-validation", "--no-save", *diverging)
    assert re.search(r"training ended in update \d: gradients are Nan/Inf.*--lr.*--clip-norm", found.error)
    assert "detected in output of" in found.out  # fairseq's search for the module that was the first to fail


def test_nan_in_mixed_precision(tools):
    """The first overflow lowers the scale of the loss; below its minimum the training ends."""
    diverging = ["--lr", 1e30, "--warmup-updates", 1, "--min-loss-scale", 60, "--max-update", 9]
    found = tools.train("nan", *tools.attention["mixed"], "--memory-efficient-fp16", *ONE, *diverging, "--no-save")
    assert "setting loss scale to: 64.0" in found.out
    for words in ("training ended in update 3", "Minimum loss scale", "--lr"):
        assert words in found.error


DEAD_WORKER = """
import os, signal
from torch.utils.data import get_worker_info
from fairseq.data.language_pair_dataset import LanguagePairDataset
get, seen = LanguagePairDataset.__getitem__, []
def get_or_die(self, index):
    seen.append(index)
    if get_worker_info() and len(seen) > 150:
        os.kill(os.getpid(), signal.SIGKILL)
    return get(self, index)
LanguagePairDataset.__getitem__ = get_or_die
"""


def test_dead_data_worker(tools, favor):
    folder = copied(tools, "favor", "dead-worker")
    before = digests(folder)
    flags = [*tools.attention["favor"], "--disable-validation", "--max-update", 90, "--num-workers", 1]
    found = tools.train("dead-worker", *flags, without=("--num-workers",), prelude=DEAD_WORKER)
    for words in ("a process that reads data for this one died", "--num-workers", "last checkpoint"):
        assert words in found.error
    after = digests(folder)
    after.pop("crash.pt", None)
    assert after == before


# Root could write anywhere: it gives up its capabilities.
NO_CAPABILITIES = """
import ctypes
header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
assert ctypes.CDLL(None).capset(header, none) == 0
"""


def test_read_only_folders(tools, favor):
    """Data may be read-only. A folder of checkpoints may not, which is noticed before the first update."""
    for name in ("bin", "favor"):
        folder = copied(tools, name, f"{name}-read-only")
        for path in (*folder.iterdir(), folder):
            path.chmod(0o555 if path.is_dir() else 0o444)
    before = digests(folder)
    flags = [*tools.attention["favor"], "--max-update", 76, "--disable-validation"]
    found = tools.train("favor-read-only", *flags, prelude=NO_CAPABILITIES)
    assert "Permission denied: 'favor-read-only/" in found.error
    assert not found.losses() and digests(folder) == before
    tools.train("elsewhere", *ONE, *tools.attention["favor"], data="bin-read-only", prelude=NO_CAPABILITIES).ok()


def test_full_disk_while_binarising(tools):
    found = preprocess(tools, "bpe", "half", prelude=full_disk(20_000))
    assert "File too large: 'half/train.en-de.en'" in found.error
    assert not (tools.folder / "half/train.en-de.en.idx").exists(), "fairseq takes no data without an index"


def test_text_that_is_not_utf8(tools):
    folder = tools.folder / "latin"
    folder.mkdir()
    for language in ("en", "de"):
        lines = (tools.folder / f"bpe/train.{language}").read_bytes().split(b"\n")
        lines.insert(300, "Straße".encode("latin-1"))
        (folder / f"train.{language}").write_bytes(b"\n".join(lines))
    found = preprocess(tools, "latin", "latin-bin", "--workers", 3)
    assert "latin/train.en: expected UTF-8 text, actual byte 0xdf at position 4 of line 301" in found.error


def test_byte_order_mark(tools, favor):
    """It is left out, which is said once; it would make the first word an unknown one."""
    (tools.folder / "marked").mkdir()
    for language in ("en", "de"):
        text = (tools.folder / f"bpe/val.{language}").read_text(encoding="utf-8")
        (tools.folder / f"marked/train.{language}").write_text("\ufeff" + text, encoding="utf-8")
    found = preprocess(tools, "marked", "marked-bin", "--workers", 1).ok()
    assert (found.out + found.err).count("marked/train.en begins with a byte order mark") == 1
    for language in ("en", "de"):
        written, expected = (tools.folder / name for name in ("marked-bin/train.en-de", "bin/valid.en-de"))
        assert Path(f"{written}.{language}.bin").read_bytes() == Path(f"{expected}.{language}.bin").read_bytes()
    arguments = ("interactive", "bin", *tools.user_dir, "--path", "favor/checkpoint_last.pt", "--cpu", "--max-len-b", 5)
    plain, marked = (tools.run(*arguments, stdin=mark + "▁Ein ▁Mann\n").ok() for mark in ("", "\ufeff"))
    assert marked.lines("S")[0] == plain.lines("S")[0] and "standard input begins with" in marked.out + marked.err


# As with LC_ALL=C, without the UTF-8 that Python would choose then.
ASCII = """
import locale, sys
locale.setlocale(locale.LC_ALL, "C")
for stream in (sys.stdin, sys.stdout, sys.stderr):
    stream.reconfigure(encoding="ascii")
"""


def test_locale_c(tools, favor):
    found = tools.generate("favor/checkpoint_last.pt", "--beam", 1, "--max-len-b", 5, prelude=ASCII).ok()
    expected = (tools.folder / "bpe/val.de").read_text(encoding="utf-8").splitlines()
    assert any(not line.isascii() for line in expected)
    assert [len(line.split()) for line in found.lines("T")] == [len(line.split()) for line in expected]
    assert any(not line.isascii() for line in found.lines("T"))


def test_lines_of_0_and_10000_tokens(tools, favor):
    """An empty line is trained on and translated. A line beyond the maximum is left out of training, and refused
    elsewhere."""
    folder = tools.folder / "extreme"
    folder.mkdir()
    for language in ("en", "de"):
        lines = (tools.folder / f"bpe/val.{language}").read_text(encoding="utf-8").splitlines()
        (folder / f"train.{language}").write_text(
            "\n".join([*lines, "", " ".join((lines[0].split() * 1000)[:10_000])]) + "\n", encoding="utf-8"
        )
        (folder / f"short.{language}").write_text("\n" + "\n".join(lines[:7]) + "\n", encoding="utf-8")
    sets = ["--validpref", "extreme/short", "--testpref", "extreme/short,extreme/train"]
    preprocess(tools, "extreme", "extreme-bin", *sets).ok()
    model = "extreme-model/checkpoint_last.pt"
    flags = [*tools.attention["favor"], "--max-update", 2, "--batch-size", 8, "--no-epoch-checkpoints"]
    found = tools.train("extreme-model", *flags, data="extreme-bin", without=("--batch-size",)).ok()
    assert "1 samples have invalid sizes and will be skipped" in found.out
    assert all(loss < 100 for loss in found.losses() + found.losses("valid_loss"))
    found = tools.generate(model, "--beam", 1, "--max-len-b", 5, data="extreme-bin").ok()
    assert len(found.translations()) == 8 and "S-0\t\n" in found.out
    found = tools.generate(model, "--gen-subset", "test1", data="extreme-bin")
    assert "Size of sample #41 is invalid" in found.error and "--skip-invalid-size-inputs-valid-test" in found.error
