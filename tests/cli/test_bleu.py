import gzip
import json
import os
import re
import subprocess
import sys
import threading
import unicodedata
from importlib import metadata

import pytest

from fwp_fairseq.cli.corpus import Corpus
from fwp_fairseq.cli.translations import about_other_references

REFERENCES = [
    "Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt.",
    "Ein Boston Terrier läuft über saftig-grünes Gras vor einem weißen Zaun.",
    "Ein Mädchen in einem Karateanzug bricht ein Brett mit einem Tritt.",
    "Fünf Leute in Winterjacken und mit Helmen stehen im Schnee.",
]
HYPOTHESES = [
    "Ein Mann mit orangefarbenem Hut, der etwas anstarrt.",
    "Ein Boston Terrier läuft auf einem grünen Gras vor einem weißen Zaun.",
    "Ein Mädchen in einem Karateanzug bricht ein Brett.",
    "Fünf Personen in Winterjacken mit Helmen stehen im Schnee.",
]


def pieces(text):
    """Cuts a sentence into pieces as SentencePiece marks them."""
    return " ".join(
        word[:3] + " " + word[3:] if len(word) > 3 else word for word in ("▁" + text.replace(" ", " ▁")).split()
    )


def generated(kinds, order=(2, 0, 3, 1)):
    """Returns output of fairseq-generate with lines of these kinds."""
    lines = ["2026-01-01 | INFO | fairseq.tasks.translation | [en] dictionary: 4000 types"]
    for number in order:
        lines += [f"S-{number}\tA source", f"T-{number}\tA <<unk>> target"]
        for kind, text in kinds.items():
            lines.append(f"{kind}-{number}\t-0.123\t{text(HYPOTHESES[number])}")
        lines.append(f"P-{number}\t-0.1 -0.2")
    return "\n".join([*lines, "Generate test with beam=4: BLEU4 = 12.34", ""])


@pytest.fixture
def files(tmp_path):
    references, hypotheses = tmp_path / "ref.txt", tmp_path / "hyp.txt"
    references.write_text("\n".join(REFERENCES) + "\n")
    hypotheses.write_text("\n".join(HYPOTHESES) + "\n")
    return references, hypotheses


def score(fwp, references, hypotheses, *arguments):
    result = fwp("bleu", "--references", references, "--hypotheses", hypotheses, *arguments)
    assert result.status == 0, result.err
    return result.out


FLAGS = (
    *("--tokenize", "intl", "--lowercase", "--smooth-method", "floor", "--smooth-value", "0.2", "--force"),
    *("--chrf-char-order", "4", "--chrf-word-order", "2", "--chrf-beta", "3", "--chrf-whitespace", "--chrf-lowercase"),
    *("--chrf-eps-smoothing", "--ter-case-sensitive", "--ter-asian-support", "--ter-no-punct", "--ter-normalized"),
)


def test_scores_are_those_of_the_sacrebleu_command_with_its_flags(fwp, files):
    references, hypotheses = files
    found, keys = [], ("name", "score", "signature")
    for flags in ((), FLAGS):
        metrics = ("-m", "bleu", "chrf", "ter", "-w", 8, *flags)
        theirs = sacrebleu(references, "-i", hypotheses, *metrics)
        mine = json.loads(score(fwp, references, hypotheses, *metrics, "--json"))
        found.append([tuple(one[key] for key in keys) for one in mine])
        assert found[-1] == [tuple(one[key] for key in keys) for one in theirs]
    plain, flagged = ([signature for *_, signature in one] for one in found)
    assert 30 < found[0][0][1] < 80 and [name for name, *_ in found[1]] == ["BLEU", "chrF3++", "TER"]
    assert not {*plain} & {*flagged} and "case:lc|eff:no|tok:intl|smooth:floor[0.20]" in flagged[0]
    # The text output also has the signature of each score.
    text = score(fwp, references, hypotheses, *metrics)
    assert all(signature in text for signature in flagged)


def sacrebleu(*arguments, seed=12345):
    """Runs sacreBLEU's own command."""
    command = [sys.executable, "-m", "sacrebleu", *map(str, arguments)]
    environment = {**os.environ, "SACREBLEU_SEED": str(seed)}
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)


@pytest.fixture
def systems(tmp_path):
    """Writes references of 24 sentences, and two translations with errors in different places."""
    worse, better, references = tmp_path / "worse.txt", tmp_path / "better.txt", tmp_path / "references.txt"
    references.write_text("".join(f"{number} {text}\n" for number in range(6) for text in REFERENCES))
    better.write_text("".join(f"{number} {text}\n" for number in range(6) for text in HYPOTHESES))
    texts = [text.replace("Mann" if number % 2 else "einem", "x") for number in range(6) for text in HYPOTHESES]
    worse.write_text("".join(f"{number} {text}\n" for number, text in enumerate(texts)))
    return worse, better, references


def test_confidence_interval_is_sacrebleu_s(fwp, systems, monkeypatch):
    samples, seed = 50, 7
    monkeypatch.setenv("SACREBLEU_SEED", str(seed))
    _, better, references = systems
    theirs = sacrebleu(
        *(references, "-i", better, "-m", "bleu", "chrf", "ter", "-w", 6, "--confidence", "--confidence-n", samples),
        seed=seed,
    )
    mine = score(
        *(fwp, references, better, "--metrics", "bleu", "chrf", "ter", "--width", 6, "--json"),
        *("--confidence", "--confidence-n", samples),
    )
    keys = ("name", "score", "signature", "confidence_mean", "confidence_var")
    assert [[m[key] for key in keys] for m in json.loads(mine)] == [[t[key] for key in keys] for t in theirs]
    assert f"seed:{seed}" in theirs[0]["signature"] and theirs[0]["confidence_var"] > 0


# TER and chrF are left out, because sacreBLEU fails to write their bootstrap results as JSON.
@pytest.mark.parametrize("kind, samples, metrics", [("bs", 1000, ["bleu"]), ("ar", 300, ["bleu", "ter"])])
def test_paired_tests_are_sacrebleu_s(fwp, systems, tmp_path, kind, samples, metrics):
    worse, better, references = systems
    other = tmp_path / "other.txt"
    other.write_text(better.read_text().replace("Brett", "Haus", 1))
    three = (better, worse, other)
    theirs = sacrebleu(
        *(references, "-i", *three, "-m", *metrics, "-f", "json", f"--paired-{kind}"),
        *(f"--paired-{kind}-n", samples),
    )
    found = fwp(
        *("bleu", "--references", references, "--hypotheses", *three, "--metrics", *metrics, "--json"),
        *(f"--paired-{kind}", f"--paired-{kind}-n", samples),
    )
    mine = json.loads(found.out)
    for metric in map(str.upper, metrics):
        for number, theirs_of_one in enumerate(theirs):
            result = mine[number][metric]
            assert f"{kind}:{samples}" in result.pop("signature")
            p = result["p_value"]  # theirs leaves samples out that differ as much as the systems
            assert {**result, "p_value": None} == theirs_of_one[metric] | {"p_value": None}
            assert number == 0 or p >= theirs_of_one[metric]["p_value"]
    values = [system["BLEU"]["p_value"] for system in mine]
    assert values[0] is None and values[1] < 0.05


@pytest.mark.parametrize("kind, samples, least", [("bs", 1000, "0.001"), ("ar", 20_000, "5e-05")])
def test_a_paired_test_says_what_p_is_about(fwp, systems, kind, samples, least):
    worse, better, references = systems
    words = ("bleu", "--references", references, "--hypotheses", better, worse)
    words += (f"--paired-{kind}", f"--paired-{kind}-n", samples)
    said = " ".join(fwp(*words).out.split())
    assert "says nothing about trainings with other seeds" in said
    assert f"The smallest possible p is {least} ({samples:,} samples)." in said
    json.loads(fwp(*words, "--json").out)


def test_compound_split_is_the_recipe_called_by_hand(fwp, systems, tmp_path):
    """The recipe is Moses's tokenizer, sed to split hyphens, and BLEU without further tokenising."""
    worse, _, references = systems
    cut = []
    for path in (references, worse):
        text = path.read_text().replace("Hut", 'Hut-Mann "Gras"').replace("Schnee", "Nord-Süd-Ost-Winter a-b-c")
        path.write_text(text)
        command = [sys.executable, "-m", "sacremoses", "-l", "de", "-q", "tokenize"]
        tokens = subprocess.run(command, input=text, check=True, capture_output=True, text=True).stdout
        command = ["sed", "-E", r"s/([^[:space:]])-([^[:space:]])/\1 ##AT##-##AT## \2/g"]
        cut.append(tmp_path / f"{path.name}.cut")
        cut[-1].write_text(subprocess.run(command, input=tokens, check=True, capture_output=True, text=True).stdout)
    assert "Süd ##AT##-##AT## Ost" in cut[0].read_text() and "&quot;" in cut[0].read_text()
    theirs = sacrebleu(
        *(cut[0], "-i", cut[1], "-w", 8, "--tokenize", "none", "--force", "--smooth-method", "none", "--confidence")
    )
    plain, mine = json.loads(score(fwp, references, worse, "--compound-split", "--width", 8, "--json", "--confidence"))
    assert (mine["score"], mine["confidence_var"]) == (theirs["score"], theirs["confidence_var"])
    assert mine["name"] == "BLEU-compound-split" and plain["name"] == "BLEU"
    assert mine["score"] != plain["score"] and 0 < mine["score"] < 100
    moses = metadata.version("sacremoses")
    assert f"tok:sacremoses-{moses}-de+compound-split|smooth:none" in mine["signature"]


@pytest.mark.parametrize(
    "kinds",
    [
        {"H": pieces, "D": str},
        {"H": pieces},
        {"H": pieces, "D": pieces},
        {"H": str},
        {"H": lambda text: "nonsense", "D": str},
    ],
    ids=["D", "H", "D in pieces", "H joined", "D before H"],
)
def test_generate_output_scores_like_its_plain_text(fwp, files, tmp_path, kinds):
    (tmp_path / "generate.txt").write_text(generated(kinds))
    assert score(fwp, files[0], tmp_path / "generate.txt") == score(fwp, *files)


def test_subword_nmt(fwp, refused, files, tmp_path):
    path = tmp_path / "generate.txt"
    path.write_text(generated({"H": lambda text: text.replace("Terrier", "Ter@@ rier")}))
    assert "--remove-bpe" in refused(1, "bleu", "--references", files[0], "--hypotheses", path)
    assert score(fwp, files[0], path, "--remove-bpe") == score(fwp, *files)


@pytest.mark.parametrize(
    "text, named",
    [
        (generated({"H": str}, order=(0, 1, 3)), "first is 2; decode with --required-batch-size-multiple 1, and join"),
        (generated({"H": str}, order=(0, 1, 2)), "3 translations"),
        (generated({"H": str}, order=(0, 1, 2, 3, 1)), "H-1 occurs twice"),
        ("\n".join(HYPOTHESES[:3]) + "\n", "3 translations"),
        ("", "0 translations"),
    ],
)
def test_incomplete_translations_are_refused(refused, files, tmp_path, text, named):
    (tmp_path / "bad.txt").write_text(text)
    (tmp_path / "empty").touch()
    assert "0 translations" in refused(
        1, "bleu", "--references", tmp_path / "empty", "--hypotheses", tmp_path / "empty"
    )
    assert named in refused(1, "bleu", "--references", files[0], "--hypotheses", tmp_path / "bad.txt")


def test_tokenised_bleu_of_h_lines_is_fairseq_s(fwp, refused, tmp_path, monkeypatch, capsys):
    from fairseq_cli import score as fairseq_score

    texts = {"references": REFERENCES, "hypotheses": HYPOTHESES}
    tokens = {name: [re.sub("([.,])", r" \1", text).lower() for text in found] for name, found in texts.items()}
    for name, texts in tokens.items():
        (tmp_path / name).write_text("\n".join(texts) + "\n")
    files = ["--sys", str(tmp_path / "hypotheses"), "--ref", str(tmp_path / "references")]
    monkeypatch.setattr("sys.argv", ["fairseq-score", *files])
    fairseq_score.cli_main()
    theirs = re.search(r"BLEU4 = ([\d.]+),", capsys.readouterr().out)[1]
    path = tmp_path / "generate-test.txt"
    lower = dict(zip(HYPOTHESES, tokens["hypotheses"], strict=True))
    path.write_text(generated({"H": lambda text: pieces(lower[text]), "D": str}))
    multi_bleu = ("--tokenize", "none", "--smooth-method", "none", "--force")
    (ours,) = json.loads(score(fwp, tmp_path / "references", path, "--lines", "H", *multi_bleu, "--json"))
    assert f"{ours['score']:.2f}" == theirs and "tok:none|smooth:none" in ours["signature"]
    path.write_text(generated({"H": str}))
    assert "--lines D" in refused(1, "bleu", "--references", path, "--hypotheses", path, "--lines", "D")


def test_a_line_separator_inside_a_sentence_is_no_line_end(fwp, files, tmp_path):
    (tmp_path / "hyp.txt").write_text("\n".join([HYPOTHESES[0] + "\u2028x\x0b", *HYPOTHESES[1:]]) + "\n")
    score(fwp, files[0], tmp_path / "hyp.txt")


def test_a_carriage_return_inside_a_reference_is_no_line_end(tmp_path):
    references = [f"sentence {number} is about {word} things" for number, word in enumerate(["old", "new", "odd"] * 9)]
    (tmp_path / "references.de").write_text("\n".join([references[0] + "\rx", *references[1:]]) + "\n", newline="")
    (tmp_path / "translations.de").write_text("\n".join(references) + "\n")
    assert not about_other_references(str(tmp_path / "translations.de"), references)


def test_references_that_models_cannot_write_are_noticed(fwp, tmp_path):
    """Those of `fwp train` are in NFC, like its translations; letters of Hindi that NFC takes apart are not."""
    text = "\u095b\u095c \u095d\u095e eins zwei drei"
    for part in ("train", "valid", "test"):
        for language in ("en", "hi"):
            (tmp_path / f"{part}.{language}").write_text(f"{text}\n")
    _, references = Corpus(tmp_path, ("en", "hi")).write_test_set(tmp_path, "NFC")
    (tmp_path / "translations.hi").write_text(unicodedata.normalize("NFC", text) + "\n")
    hypotheses = ("bleu", "--hypotheses", tmp_path / "translations.hi", "--references")
    own, raw = fwp(*hypotheses, references), fwp(*hypotheses, tmp_path / "test.hi")
    assert "BLEU" in own.out and " = 100.00" in own.out and not own.err
    assert " = 100.00" not in raw.out and "test.hi: 1 of 1 lines are not in Unicode's NFC" in raw.err
    assert "another test set" not in raw.err


@pytest.mark.parametrize(
    "flag, number", [("--width", -1), ("--width", 10**11), ("--smooth-value", "nan"), ("--confidence-n", 1)]
)
def test_numbers_that_sacrebleu_does_not_check(refused, files, flag, number):
    assert f"{flag} {number}: " in refused(2, "bleu", "--references", files[0], "--hypotheses", files[1], flag, number)


@pytest.mark.parametrize("seed", ["x", "-1", "1.5"])
def test_a_seed_that_sacrebleu_cannot_use(refused, files, monkeypatch, seed):
    monkeypatch.setenv("SACREBLEU_SEED", seed)
    error = refused(2, "bleu", "--references", files[0], "--hypotheses", files[1], "--confidence")
    assert f"SACREBLEU_SEED {seed}: expected none or a whole number" in error


def test_unreadable_files(refused, files, tmp_path):
    (tmp_path / "latin.txt").write_bytes("größer\n".encode("latin-1") * 4)
    error = refused(1, "bleu", "--references", files[0], "--hypotheses", tmp_path / "latin.txt")
    assert "latin.txt: expected UTF-8 text, actual byte 0xf6 at position 2 of line 1" in error
    for content, named in (
        (gzip.compress(files[0].read_bytes())[:-12], "expected gzip, as its name says"),
        (files[0].read_bytes(), "expected gzip, as its name says"),
        (gzip.compress(b"a\nb\xdf\n"), "expected UTF-8 text, actual byte 0xdf at position 1 of line 2"),
    ):
        (tmp_path / "ref.gz").write_bytes(content)
        error = refused(1, "bleu", "--references", tmp_path / "ref.gz", "--hypotheses", files[1])
        assert f"ref.gz: {named}" in error
    assert "nowhere" in refused(1, "bleu", "--references", tmp_path / "nowhere", "--hypotheses", files[1])


def test_files_of_every_kind(fwp, files, tmp_path):
    """Compressed, from a pipe (as bash's <(zcat ...) is), and with a byte order mark, which is said once."""
    references = files[0].read_bytes()
    (tmp_path / "ref.gz").write_bytes(gzip.compress(references))
    os.mkfifo(tmp_path / "pipe")
    expected = score(fwp, *files)
    threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(files[1].read_bytes(),), daemon=True).start()
    assert score(fwp, files[0], tmp_path / "pipe") == expected  # opened once
    threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(references,)).start()
    assert [score(fwp, tmp_path / name, files[1]) for name in ("ref.gz", "pipe")] == [expected, expected]
    (tmp_path / "marked").write_bytes("\ufeff".encode() + references)
    found = fwp("bleu", "--references", tmp_path / "marked", "--hypotheses", files[1])
    assert found.out == expected and found.err.count("begins with a byte order mark") == 1


def test_pieces_of_plain_text_are_joined_on_request_only(fwp, files, tmp_path):
    for name, cut in (("spm.txt", pieces), ("nmt.txt", lambda text: text.replace("Terrier", "Ter@@ rier"))):
        (tmp_path / name).write_text("".join(f"{cut(text)}\n" for text in HYPOTHESES))
        assert score(fwp, files[0], tmp_path / name, "--remove-bpe") == score(fwp, *files)
        assert score(fwp, files[0], tmp_path / name) != score(fwp, *files)


def test_calls_that_make_no_sense(refused, files, tmp_path):
    common = ("bleu", "--references", files[0], "--hypotheses")
    other = tmp_path / "other.txt"
    other.write_text(files[1].read_text())
    for flags, named in (
        ([files[1], "--paired-bs"], "two or more different files"),
        ([files[1], files[1], "--paired-bs"], "two or more different files"),
        ([files[1], files[1].parent / "." / ".." / files[1].parent.name / "hyp.txt", "--paired-bs"], "different files"),
        ([files[1], other], "--paired-bs or --paired-ar"),
        ([files[1], other, "--paired-bs", "--paired-ar"], "--paired-bs and --paired-ar: expected one of them"),
        ([files[1], "--tokenize", "13b"], "invalid choice: '13b'"),
    ):
        assert named in refused(2, *common, *flags)
    other.write_text("short\n")
    assert "other.txt has 1" in refused(1, *common, files[1], other, "--paired-bs")


def test_references_scored_against_themselves_are_noticed(fwp, files, tmp_path):
    (tmp_path / "link").symlink_to(files[0])
    found = fwp("bleu", "--references", files[0], "--hypotheses", tmp_path / "link")
    assert " = 100.00" in found.out and "link is the file of --references, which is scored against itself" in found.err
    assert not fwp("bleu", "--references", files[0], "--hypotheses", files[1]).err


def test_a_bootstrap_of_one_sentence_is_said_to_mean_nothing(fwp, tmp_path):
    for name, text in (("reference", "the cat sat"), ("one", "the cat sat"), ("two", "the dog sat")):
        (tmp_path / name).write_text(f"{text}\n")
    line = ("bleu", "--references", tmp_path / "reference", "--hypotheses", tmp_path / "one", tmp_path / "two")
    assert "the p-value means nothing" in fwp(*line, "--paired-bs").err
    assert "means nothing" not in fwp(*line, "--paired-ar").err
