import gzip
import json
import subprocess
import sys

import pytest

pytest.importorskip("sacrebleu")

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
    """As SentencePiece would cut it."""
    return " ".join(
        word[:3] + " " + word[3:] if len(word) > 3 else word for word in ("▁" + text.replace(" ", " ▁")).split()
    )


def generated(kinds, order=(2, 0, 3, 1)):
    """A fairseq-generate output with lines of these kinds."""
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


def test_equals_the_sacrebleu_command(fwp, files):
    references, hypotheses = files
    metrics = ("bleu", "chrf", "ter")
    command = [sys.executable, "-m", "sacrebleu", references, "-i", hypotheses, "-m", *metrics, "-w", "8"]
    theirs = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    mine = json.loads(score(fwp, references, hypotheses, "--metrics", *metrics, "--width", 8, "--json"))
    assert [(m["name"], m["score"], m["signature"]) for m in mine] == [
        (t["name"], t["score"], t["signature"]) for t in theirs
    ]
    assert 30 < mine[0]["score"] < 80


def test_text_holds_score_and_signature(fwp, files):
    assert "BLEU|nrefs:1|case:mixed|eff:no|tok:13a" in score(fwp, *files)


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


def test_empty_translation_counts_as_one(fwp, files, tmp_path):
    (tmp_path / "generate.txt").write_text(generated({"H": lambda text: "" if "Terrier" in text else text}))
    (tmp_path / "plain.txt").write_text("\n".join("" if "Terrier" in text else text for text in HYPOTHESES) + "\n")
    assert score(fwp, files[0], tmp_path / "generate.txt") == score(fwp, files[0], tmp_path / "plain.txt")


def test_compressed_references(fwp, files, tmp_path):
    (tmp_path / "ref.gz").write_bytes(gzip.compress(files[0].read_bytes()))
    assert score(fwp, tmp_path / "ref.gz", files[1]) == score(fwp, *files)


def test_subword_nmt(fwp, refused, files, tmp_path):
    path = tmp_path / "generate.txt"
    path.write_text(generated({"H": lambda text: text.replace("Terrier", "Ter@@ rier")}))
    assert "--remove-bpe" in refused(1, "bleu", "--references", files[0], "--hypotheses", path)
    assert score(fwp, files[0], path, "--remove-bpe") == score(fwp, *files)
    assert "--remove-bpe" in refused(2, "bleu", "--references", files[0], "--hypotheses", files[1], "--remove-bpe")


@pytest.mark.parametrize(
    "text, named",
    [
        (generated({"H": str}, order=(0, 1, 3)), "first is 2"),
        (generated({"H": str}, order=(0, 1, 2)), "3 translations"),
        (generated({"H": str}, order=(0, 1, 2, 3, 1)), "H-1 occurs twice"),
        ("\n".join(HYPOTHESES[:3]) + "\n", "3 translations"),
        ("", "0 translations"),
    ],
)
def test_incomplete_translations_are_refused(refused, files, tmp_path, text, named):
    (tmp_path / "bad.txt").write_text(text)
    assert named in refused(1, "bleu", "--references", files[0], "--hypotheses", tmp_path / "bad.txt")


def test_a_line_separator_inside_a_sentence_is_no_line_end(fwp, files, tmp_path):
    (tmp_path / "hyp.txt").write_text("\n".join([HYPOTHESES[0] + "\u2028x\x0b", *HYPOTHESES[1:]]) + "\n")
    score(fwp, files[0], tmp_path / "hyp.txt")


def test_unreadable_files(refused, files, tmp_path):
    (tmp_path / "latin.txt").write_bytes("größer\n".encode("latin-1") * 4)
    assert "latin.txt" in refused(1, "bleu", "--references", files[0], "--hypotheses", tmp_path / "latin.txt")
    (tmp_path / "ref.gz").write_bytes(gzip.compress(files[0].read_bytes())[:-12])
    assert "ref.gz" in refused(1, "bleu", "--references", tmp_path / "ref.gz", "--hypotheses", files[1])
    assert "nowhere" in refused(1, "bleu", "--references", tmp_path / "nowhere", "--hypotheses", files[1])
