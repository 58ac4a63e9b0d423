"""`fwp train` with a baseline, shared data, a checkpoint to go on from, and what it says before it works."""

import gzip
import json
import re
import shutil

from fwp_fairseq.cli import commands, main
from fwp_fairseq.cli.training import Training, lengths_of
from tests.fairseq_tools.test_own_texts import run, texts  # noqa: F401  (a fixture)
from tests.full_disk import full_disk


def test_a_baseline_shared_data_and_a_training_that_goes_on_from_a_converted_model(tools, texts):  # noqa: F811
    for name in ("train.en", "test.en", "test.de"):
        (texts / f"{name}.gz").write_bytes(gzip.compress((texts / name).read_bytes()))
        (texts / name).unlink()
    shared = ("--data", texts.parent / "data")
    done = run(
        tools, texts, *shared, "--baseline", "--max-update", 2, "--vocabulary", 100000, "--", "--dropout", "0.2"
    ).ok()
    out, data = texts.parent / "out of it", texts.parent / "data"
    said = done.out
    assert re.search(r"pairs     40 to train on, 40 to validate on, 5 to test\n", said)
    assert re.search(r"the texts give [\d,]+ pieces at most, fewer than --vocabulary 100,000\n", said)
    assert "model     fwp_transformer_tiny_hybrid (chosen for this number of words)" in said
    assert "updates   2 of at most 2,500 tokens" in said
    assert (data / "prepared.json").is_file() and not (out / "prepared.json").exists()
    assert "--arch fwp_transformer_tiny --fwp-feature-map softmax" in said
    for folder in (out, out / "baseline"):
        assert len((folder / "translations.de").read_text().splitlines()) == 5
        assert "'dropout': 0.2" in (folder / "train.log").read_text()
    assert "Baseline:" in said and "p = " in said and "Both trainings made 2 of the 1,000 updates planned" in said
    (row,) = re.findall(r"\| baseline .*", said)
    assert "fwp_transformer_tiny |" in re.sub(" +", " ", row) and "softmax" in row
    assert (out / "curve.svg").read_text().count("<svg") == 1 and "fwp table --results" in said

    other = run(tools, texts, *shared, "--baseline", "softmax-rotary", "--max-update", 3)
    assert other.status == 2 and "holds --baseline softmax; expected another --out" in other.err
    elsewhere = run(tools, texts, "--max-update", 3)
    assert elsewhere.status == 2 and not (out / "prepared.json").exists(), elsewhere.out
    assert f"holds a training with --data {data}; expected that or another --out" in elsewhere.err

    converted = texts.parent / "converted.pt"
    flags = ("--fwp-feature-map", "elu", "--fwp-update-rule", "delta")
    baseline = out / "baseline/checkpoints/checkpoint_last.pt"
    tools.command("fwp", "convert", "--input", baseline, "--output", converted, *flags).ok()
    (texts / "valid.de").write_text((texts / "valid.de").read_text().upper())  # other texts, with the pieces of before
    words = ("--finetune-from", converted, "--max-update", 3)
    for name in ("dict.en.txt", "dict.de.txt", "spm.model"):
        shutil.copy(data / name, converted.parent)
    train = ("fwp", "train", "--texts", texts, "--cpu")
    words = ("--source", "en", "--target", "de", "--out", texts.parent / "more", *words)
    given = ("--data", texts.parent / "given")
    more = tools.command(*train, *words, *given).ok()
    assert "(that of --finetune-from)" in more.out and "--finetune-from-model" in more.out
    again = tools.command(*train, *words, *given).ok()
    assert "no update was left to make" in again.out
    copied = shutil.copytree(texts.parent / "given", texts.parent / "copied")
    assert "no update was left to make" in tools.command(*train, *words, "--data", copied).ok().out
    (texts / "train.de").write_text((texts / "train.de").read_text().lower())
    shutil.rmtree(copied)
    other = (*words[:4], "--out", texts.parent / "one", "--data", copied, *words[6:8], "--max-update", 1)
    tools.command(*train, *other).ok()  # which prepares other texts with the same pieces
    others = tools.command(*train, *words, "--data", copied)
    assert others.status == 2 and f"holds a training with --data {given[1]}; expected that" in others.err
    for language in ("en", "de"):
        assert (given[1] / f"dict.{language}.txt").read_bytes() == (data / f"dict.{language}.txt").read_bytes()
    assert "--lr 1e-3" in more.out and "--fwp-update-rule delta" in more.out
    log = (texts.parent / "more/train.log").read_text()
    assert "loading pretrained model from" in log
    swap = ("--source", "de", "--target", "en", "--out", texts.parent / "x", "--finetune-from", converted)
    swapped = tools.command(*train, *swap)
    assert swapped.status == 2 and "translates en into de, expected de into en" in swapped.err


def test_minutes_bound_the_updates(tools, texts):  # noqa: F811
    done = run(tools, texts, "--minutes", 0.02).ok()
    (updates, seconds) = re.search(r"updates   ([\d,]+) of .*\n.*, ([\d.]+) s an update", done.out).groups()
    assert int(updates.replace(",", "")) <= max(1, 1.2 / (float(seconds) - 0.005))
    assert re.search(r"updates   .* tokens; 1,000 without --minutes\n", done.out)
    assert done.out.endswith("or with a larger --minutes\n\n")
    warmup = re.search(r"--warmup-updates (\d+)", done.out)[1]
    assert int(warmup) == max(1, int(updates.replace(",", "")) // 5)  # the warm-up fits the minutes too
    kept, _ = (texts.parent / "out of it/seconds_per_update").read_text().splitlines()
    assert abs(float(kept) - float(seconds)) <= 0.0051
    assert re.search(r"; done at about \d\d:\d\d", done.out)
    assert "--stop-time-hours" in done.out


def test_a_damaged_record_of_an_earlier_run_is_named(tools, texts, capsys):  # noqa: F811
    run(tools, texts, "--max-update", 1).ok()
    stamp = texts.parent / "out of it/prepared.json"

    def error() -> str:
        words = (
            "--texts",
            texts,
            "--source",
            "en",
            "--target",
            "de",
            "--cpu",
            "--out",
            stamp.parent,
            "--max-update",
            2,
        )
        assert main(["train", *map(str, words)]) == 1
        return capsys.readouterr().err

    good = stamp.read_text()
    for damage in ("{", "[]", '{"files": 3}'):
        stamp.write_text(damage)
        bad = error()
        assert bad.count("\n") == 2  # one is about the byte order mark
        assert "prepared.json is damaged" in bad and "and the same command prepares the texts again" in bad
    stamp.write_text(good)
    for name in json.loads(good)["files"]:
        path = stamp.with_name(name)
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        assert f"{name} is damaged; delete" in error()
        path.write_bytes(content)
    stamp.unlink()
    run(tools, texts, "--max-update", 2).ok()


def test_what_valid_and_test_lose_is_said_before_the_training(tools, texts):  # noqa: F811
    en, de = ((texts / f"valid.{language}").read_text().splitlines() for language in ("en", "de"))
    (texts / "valid.en").write_text("\n".join(["w " * 3000, "", *en[2:]]) + "\n")
    (texts / "test.de").write_text("\n".join(["", "", *de[2:5]]) + "\n")
    done = run(tools, texts, "--max-update", 1).ok()
    assert re.match(r"learns up to [\d,]+ pieces and cuts \d+ pairs into them\n", done.out)
    assert "  left out: 1 of the pairs of valid, with no text on one side\n" in done.out
    assert "  scored all the same: 2 of the pairs of test, with no text on one side\n" in done.out
    assert re.search(r"\n  left out: 1 of 39 lines to validate on, with more than (1024|2048) tokens;", done.out)
    (texts / "valid.en").write_text(f"{'w ' * 3000}\n" * 40)
    shutil.rmtree(texts.parent / "out of it")
    done = run(tools, texts, "--max-update", 1)
    assert done.status == 1 and "fairseq_cli.train" not in done.out
    assert re.search(r"all 40 lines to validate on \(valid\) have more than 1024 tokens, the shortest \d+", done.err)
    limit = re.search(r"with N of (\d+) or more", done.err)[1]
    flags = [word for name in ("source-positions", "target-positions", "tokens") for word in (f"--max-{name}", limit)]
    done = run(tools, texts, "--max-update", 1, "--", *flags).ok()  # the flags that the error names are enough
    short = run(tools, texts, "--max-update", 1, "--", *flags[:4], "--max-tokens", "100")
    assert short.status == 1 and "more than a batch of --max-tokens 100; expected --max-tokens" in short.err


def test_a_baseline_makes_as_many_updates_as_minutes_allowed_the_other(monkeypatch, tmp_path, capsys):
    """The time of an update is measured before, when the machine may have had less to do."""
    calls = []

    def follow(words, log, progress):
        calls.append(words)
        progress.line('| INFO | train | {"epoch": 1, "train_num_updates": "15", "train_loss": "9.1"}')
        if len(calls) < 3:
            over = "cumulative_training_time: 0.04 > stop_time_hours: 0.03 hour(s)"
            progress.line(f"| INFO | fairseq_cli.train | Stopping training due to {over}")
        return 0

    monkeypatch.setattr(commands, "follow", follow)
    first, second = (Training(tmp_path, ["fairseq-train", name, "--max-update", "46"]) for name in ("first", "second"))
    assert first.run() == 15
    assert capsys.readouterr().out.endswith("\nthe time is over: 15 of 46 updates were made\n")
    assert second.run(15) == 15 and lengths_of(calls[1]).max_update == 15
    assert "over" not in capsys.readouterr().out
    assert second.run() is None and calls[2] == second.words  # as --patience ends a training


def test_a_full_disk_names_the_file(tools, texts):  # noqa: F811
    code = full_disk(20_000) + "from fwp_fairseq.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["train", "--texts", texts, "--source", "en", "--target", "de", "--cpu", "--out", texts.parent / "full"]
    done = tools.command("python", "-c", code, *words)
    assert done.status == 1 and re.search(r"/\w+\.tsv: File too large\n", done.err), done.err
    # Where the rules of SentencePiece fit, its model is the first file that does not.
    learn = """
from pathlib import Path
from fwp_fairseq.cli.corpus import Corpus
texts, out = map(Path, sys.argv[1:])
corpus = Corpus(texts, ("en", "de"))
model = corpus.learn_pieces(300)
"""
    code = f"import sys{learn}{full_disk(20_000)}corpus.write_pieces(out, model)"
    done = tools.command("python", "-c", code, texts, texts.parent)
    assert done.status == 1 and re.search(r"File too large: '.*/spm\.model'\n", done.err), done.err
