"""The tokenizer with which sacreBLEU scores a language."""

import importlib.util
import re
import sys
from collections.abc import Iterable

from .errors import CommandError, UsageError

# Each script that needs another tokenizer than 13a: its letters, and the tokenizers, best first, with the module that
# they need. Han comes last, because Japanese has it too.
_KANA, _HANGUL = "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9d", "\u1100-\u11ff\u3130-\u318f\uac00-\ud7ff"
_UNSPACED = (  # Thai, Lao, Tibetan, Burmese, Khmer, Tai Le, New Tai Lue, Tai Tham, Balinese, Javanese, Tai Viet
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\u1b00-\u1b7f\ua980-\ua9ff\uaa60-\uaadf"
)
_HAN = "\u3005-\u3007\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_SCRIPTS = {
    _KANA: (("ja-mecab", "MeCab", "ja"), ("char", None, None)),
    _HANGUL: (("ko-mecab", "mecab_ko", "ko"), ("char", None, None)),
    _UNSPACED: (("char", None, None),),
    _HAN: (("zh", None, None),),
}
_LEAST = 0.1  # of the letters; fewer can be names and quotations in a text of another script


def add_argument(parser) -> None:
    parser.add_argument(
        "--tokenize", metavar="NAME",
        help="sacreBLEU's tokenizer for BLEU (default: zh for Chinese; ja-mecab for Japanese and ko-mecab for Korean, "
        "if installed, else char; char for other scripts without spaces between words; 13a for all others)",
    )  # fmt: skip


def _is_written_in(script: str, text: str) -> bool:
    return len(re.findall(f"[{script}]", text)) > _LEAST * sum(map(str.isalpha, text))


def writes_spaces(references: Iterable[str]) -> bool:
    """Returns False if the script of the references has no spaces between words."""
    return not _is_written_in(_KANA + _UNSPACED + _HAN, "".join(references))


def tokenizer_of(references: Iterable[str]) -> str:
    """Returns the name of sacreBLEU's tokenizer for the script of the references.

    zh for Chinese; ja-mecab and ko-mecab for Japanese and Korean, or char, with a message, where their package is not
    installed; char for other scripts without spaces between words; 13a for all others.
    """
    text = "".join(references)
    for script, tokenizers in _SCRIPTS.items():
        if not _is_written_in(script, text):
            continue
        for name, module, extra in tokenizers:
            if module is None or importlib.util.find_spec(module):
                return name
            print(
                f"BLEU is computed over characters: {name} needs another package (pip install 'sacrebleu[{extra}]')",
                file=sys.stderr,
            )
    return "13a"


def make_metric(name: str, **options):
    """Returns sacreBLEU's metric; raises CommandError if its tokenizer needs another package or a failed download."""
    from sacrebleu.metrics import BLEU, METRICS

    tokenizer = options.get("tokenize")
    if tokenizer not in (None, *BLEU.TOKENIZERS):
        raise UsageError(f"--tokenize {tokenizer}: expected one of {', '.join(BLEU.TOKENIZERS)}")
    try:
        return METRICS[name.upper()](**options)
    except (ImportError, RuntimeError, OSError) as error:
        raise CommandError(f"{name}, --tokenize {tokenizer}: {error}") from None


def bleu_metric(references: Iterable[str], tokenizer: str | None = None):
    """Returns sacreBLEU's BLEU with this tokenizer, or that of the references' script."""
    return make_metric("bleu", tokenize=tokenizer or tokenizer_of(references))
