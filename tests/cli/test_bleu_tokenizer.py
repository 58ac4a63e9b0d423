"""The tokenizer of BLEU follows the script of the references, in every command."""

import importlib.util
import json

import pytest

from fwp_fairseq.cli.bleu_tokenizer import bleu_metric, tokenizer_of
from fwp_fairseq.cli.errors import UsageError
from scripts.common import bootstrap

SENTENCES = {
    "zh": "他今天去了图书馆，借了三本书 Python。",
    "ja": "彼は今日図書館に行って、本を三冊借りました。",
    "ko": "그는 오늘 도서관에 가서 책을 세 권 빌렸다.",
    "th": "วันนี้เขาไปห้องสมุดและยืมหนังสือสามเล่ม",
    "km": "ថ្ងៃនេះគាត់បានទៅបណ្ណាល័យ។",
    "my": "ဒီနေ့ သူ စာကြည့်တိုက်ကို သွားတယ်။",
    "lo": "ມື້ນີ້ລາວໄປຫໍສະໝຸດ",
    "bo": "དེ་རིང་ཁོང་དཔེ་མཛོད་ཁང་ལ་ཕྱིན།",
    "jv": "ꦲꦏ꧀ꦱꦫꦗꦮ",
    "ban": "ᬅᬓ᭄ᬱᬭᬩᬮᬶ",
    "tdd": "ᥖᥭᥰᥖᥬᥲ",
    "en": "Today he went to the library of 北京 and borrowed three very long books.",
    "hi": "आज वह पुस्तकालय गया।",
    "ar": "ذهب اليوم إلى المكتبة.",
    "de": "Heute ging er in die Bücherei.",
}


@pytest.mark.parametrize("language", SENTENCES)
@pytest.mark.parametrize("installed", [False, True])
def test_tokenizer_of_each_language(language, installed, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if installed else None)
    best = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"} | dict.fromkeys(
        ("th", "km", "my", "lo", "bo", "jv", "ban", "tdd"), "char"
    )
    expected = best.get(language, "13a")
    missing = not installed and expected.endswith("mecab")
    assert tokenizer_of([SENTENCES[language]]) == ("char" if missing else expected)
    assert (f"pip install 'sacrebleu[{language}]'" in capsys.readouterr().err) == missing


def test_every_command_scores_chinese_as_chinese(fwp, refused, tmp_path):
    references = [f"{SENTENCES['zh']}第{number}天。" for number in "一二三四五"]
    hypotheses = [text.replace("图书馆", "书店") for text in references]
    for name, lines in (("test.zh", references), ("out", hypotheses)):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    line = ("bleu", "--hypotheses", tmp_path / "out", "--references", tmp_path / "test.zh", "--json", "--width", 8)
    (found,) = json.loads(fwp(*line).out)
    (chosen,) = json.loads(fwp(*line, "--tokenize", "zh").out)
    assert found == chosen and "tok:zh" in found["signature"] and found["score"] > 60
    (by_words,) = json.loads(fwp(*line, "--tokenize", "13a").out)
    assert "tok:13a" in by_words["signature"] and by_words["score"] < 1
    compared = bootstrap.compare(references, hypotheses, references)
    assert compared["bleu"] == round(found["score"], 2) and "tok:zh" in compared["signature"]


def test_metrics_that_count_words_say_that_a_language_has_no_spaces(fwp, tmp_path):
    for name in ("test.zh", "out"):
        (tmp_path / name).write_text(f"{SENTENCES['zh']}\n" * 2, encoding="utf-8")
    line = ("bleu", "--hypotheses", tmp_path / "out", "--references", tmp_path / "test.zh", "--metrics", "bleu", "chrf")
    divided = ("ter", "--ter-normalized", "--ter-asian-support")
    assert not fwp(*line).err and not fwp(*line, *divided).err
    for more, named in (
        (("ter",), "TER: words end"),
        (("--chrf-word-order", 2), "chrF with --chrf-word-order: words end"),
    ):
        assert named in fwp(*line, *more).err
    for text in ("Dies ist ein Satz.", SENTENCES["ko"]):
        (tmp_path / "test.zh").write_text(f"{text}\n" * 2)
        assert "words end" not in fwp(*line, "ter").err


def test_a_tokenizer_that_does_not_exist_is_refused():
    with pytest.raises(UsageError, match="--tokenize 13b: expected one of none, zh, 13a"):
        bleu_metric(["a"], "13b")
