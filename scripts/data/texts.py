"""The texts of the language models."""

from .sources import DataError, Source, provide

__all__ = ["TINY_SHAKESPEARE", "WIKITEXT103", "DataError", "Source", "provide"]

TINY_SHAKESPEARE = Source(
    "tinyshakespeare",
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)
# The server of its first author; the address of the publication no longer answers. The checksum is of either.
WIKITEXT103 = Source(
    "wikitext103",
    "https://wikitext.smerity.com/wikitext-103-v1.zip",
    "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
)
