"""Sentences and words by Unicode's rules, in scripts with and without full stops and spaces."""

import argparse
from pathlib import Path

import pytest

from fwp_fairseq.cli import train, translate
from fwp_fairseq.cli.bleu_tokenizer import tokenizer_of
from fwp_fairseq.cli.paragraphs import Passages, count_words, passages

NAMES = {"Japanese": "ja-mecab", "Korean": "ko-mecab"}  # where they are installed
# Two sentences (in Thai two clauses), and the words of the first.
TEXTS = {
    "English": ("He went to the market.", "Is it 3.5 km away?", 5),
    "Chinese": ("他今天去市场。", "你呢？", 4),
    "Japanese": ("彼は市場に行った。", "元気ですか？", None),
    "Korean": ("나는 시장에 갔다.", "오늘 날씨가 좋다.", 3),
    "Thai": ("ฉันไปตลาด", "วันนี้อากาศดีมาก", 3),
    "Lao": ("ຂ້ອຍໄປຕະຫຼາດ", "ມື້ນີ້ອາກາດດີ", 3),
    "Khmer": ("ខ្ញុំទៅផ្សារ។", "ថ្ងៃនេះអាកាសធាតុល្អ។", 3),
    "Burmese": ("ကျွန်တော်ဈေးသွားတယ်။", "ဒီနေ့ရာသီဥတုကောင်းတယ်။", 3),
    "Hindi": ("मैं बाज़ार गया।", "आज मौसम अच्छा है।", 3),
    "Urdu": ("میں بازار گیا۔", "کیا آج موسم اچھا ہے؟", 3),
    "Arabic": ("أين السوق؟", "ذهبت إلى السوق.", 2),
    "Armenian": ("Ես գնացի շուկա։", "Այսօր եղանակը լավ է։", 3),
    "Amharic": ("ወደ ገበያ ሄድኩ።", "ዛሬ አየሩ ጥሩ ነው።", 3),
    "Hebrew": ("הלכתי לשוק.", "האם מזג האוויר יפה היום?", 2),
    "Greek": ("Πήγες στην αγορά;", "Σήμερα ο καιρός είναι καλός.", 3),
    "Tamil": ("நான் சந்தைக்குச் சென்றேன்.", "இன்று வானிலை நன்றாக உள்ளதா?", 3),
    "Bengali": ("আমি বাজারে গিয়েছিলাম।", "আজ আবহাওয়া কি ভালো?", 3),
    "Georgian": ("მე ბაზარში წავედი.", "დღეს კარგი ამინდია?", 3),
    "Tibetan": ("ང་ཁྲོམ་ལ་ཕྱིན་པ་ཡིན།", "དེ་རིང་གནམ་གཤིས་ཡག་པོ་འདུག", 6),
}


def cut(lines: list[str], words: int, size: int = 10**9) -> list[tuple[str, bool]]:
    """The passages of lines that come ``size`` at a time, each with True if its paragraph ends there."""
    cutter = Passages(words)
    taken = [part for at in range(0, len(lines), size) for part in cutter.take(lines[at : at + size])]
    return [*taken, *cutter.end()]


def paragraphs(lines: list[str]) -> list[str]:
    found = cut(lines, 10**9)
    assert all(ends for _, ends in found)
    return [text for text, _ in found]


PIECES = [
    *("Er kam", "spät. Sie", 'sagte: "Ja.', '" Danach', "z. B. 12", "oder so. Nein! Doch?", "他说：「你好。", "」真的"),
    *("吗？！ 3.", "5 m", "", "", "Ende… dann", "U.S. law.", "(Siehe S.", "7.) gut.", "a.", "a.", ""),
]


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("words", [1, 5, 12])
def test_passages_do_not_depend_on_how_the_lines_come(words, size):
    lines = [PIECES[number * 7 % len(PIECES)] for number in range(120)] + PIECES
    lines += [part for first, second, _ in TEXTS.values() for part in (first[:7], f"{first[7:]} {second}", second)]
    assert cut(lines, words, size) == cut(lines, words)
    cutter = Passages(words)
    assert sum(ends for line in lines for _, ends in cutter.take([line])) >= 12
    for _ in range(100):
        assert len(list(cutter.take(["A sentence of six words. And."]))) <= 2
    assert len(cutter._text) < 200, "what is held grows with the paragraph"


@pytest.mark.parametrize("language", TEXTS)
def test_passages_end_at_sentences_of_every_script(language):
    first, second, words = TEXTS[language]
    spaced = "" if language in ("Chinese", "Japanese") else " "
    text = spaced.join([first, second] * 60)
    assert words is None or count_words(first) == words
    assert passages(text, 1) == [first, second] * 60
    few = passages(text, 20)
    assert all(count_words(passage) <= 20 for passage in few) and 10 <= len(few) <= 60
    assert spaced.join(few) == text


def test_paragraphs_and_passages():
    assert paragraphs(["a", " b ", "", "", "c", " "]) == ["a b", "", "", "c", ""]
    text = 'One two. Three four! "Five six?" Seven eight nine'
    assert passages(text, 4) == ["One two. Three four!", '"Five six?"', "Seven eight nine"]
    assert passages(text, 1) == ["One two.", "Three four!", '"Five six?"', "Seven eight nine"]
    assert passages("", 4) == []


@pytest.mark.parametrize(
    "text, sentences",
    [
        ("他走了。“你好吗？”她问。“我很好……”他说。", ["他走了。", "“你好吗？”", "她问。", "“我很好……”他说。"]),
        ("彼は言った。「はい。」（笑）", ["彼は言った。", "「はい。」", "（笑）"]),
        ("„Hallo.“ Er ging. «Oui.» Elle vint.", ["„Hallo.“", "Er ging.", "«Oui.»", "Elle vint."]),
    ],
)
def test_opening_marks_begin_the_next_sentence(text, sentences):
    assert passages(text, 1) == sentences
    assert passages(text, 10**9) == [text], "and nothing comes between them"


def test_a_space_follows_quotation_marks_of_spaced_scripts_alone():
    assert paragraphs(["她说：“好。”", "他走了……", "他来——", "x”", "y…", "z"]) == ["她说：“好。”他走了……他来——x” y… z"]


def test_chinese_or_japanese_lines_join_without_spaces():
    first, second, third = "他说：「你好。」", "真的吗？！", "我用 fairseq 翻译。"
    assert [count_words(text) for text in (first, second, third, "two words")] == [3, 2, 4, 2]
    assert passages(first + second + third, 5) == [first + second, third]
    assert passages(first + second + third, 1) == [first, second, third]
    assert paragraphs(["第一行", "第二行", "third", "line"]) == ["第一行第二行third line"]


def test_the_table_of_the_page():
    rows = []
    for language, (first, second, _) in TEXTS.items():
        text = ("" if language in ("Chinese", "Japanese") else " ").join([first, second] * 60)
        made = passages(text, 20)
        end = "a space" if language in ("Thai", "Lao", "Tibetan") else f"`{first[-1]}` `{second[-1]}`"
        end = end if first[-1] != second[-1] or end == "a space" else f"`{first[-1]}`"
        rows.append(
            f"| {language} | {end} | {count_words(text)} | {len(made)} | {max(map(len, made))} | "
            f"`{tokenizer_of([text]).replace('char', NAMES.get(language, 'char'))}` |"
        )
    page = (Path(__file__).parents[2] / "docs/documents.md").read_text(encoding="utf-8")
    assert "\n".join(rows) in page, "\n".join(rows)


@pytest.mark.parametrize("name", ["--passage", "--window"])
def test_the_earlier_name_of_passage_works(name):
    translation, training = argparse.ArgumentParser(), argparse.ArgumentParser()
    translate.add_arguments(translation)
    train.add_arguments(training)
    corpus = ["--texts", "c", "--source", "en", "--target", "de", "--out", "o"]
    assert translation.parse_args(["model", name, "20"]).passage == 20
    assert training.parse_args([*corpus, name, "20"]).passage == 20
