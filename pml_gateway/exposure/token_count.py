"""Token counts of text for models."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable
from functools import cache, lru_cache
from importlib.util import find_spec

from pml_gateway.paths import shipped_places

TOKENIZER = "o200k_base"
VOCABULARY = shipped_places("models", TOKENIZER, f"{TOKENIZER}.tiktoken.gz")

PRETOKENS = "|".join(
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
"""The expression with which the encoding splits a text into words, as in tiktoken."""


@cache
def counter() -> Callable[[str], int]:
    """Return the counter, loaded once: it takes time and memory that only counting commands and `max_tokens` need."""
    return rs_bpe_counter() if find_spec("rs_bpe") else tiktoken_counter()


def rs_bpe_counter() -> Callable[[str], int]:
    """Return the counter of rs-bpe: loads in 0.06 s into 67 MB, but has no wheels for Python 3.14."""
    from rs_bpe import openai

    count: Callable[[str], int] = openai.o200k_base().count
    return count


def tiktoken_counter() -> Callable[[str], int]:
    """Return the counter of tiktoken: loads in 0.25 s into 86 MB; the vocabulary that it would download is shipped."""
    import tiktoken

    file = next(place for place in VOCABULARY if place.is_file())
    lines = (line.split() for line in gzip.decompress(file.read_bytes()).splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    encoding = tiktoken.Encoding(TOKENIZER, pat_str=PRETOKENS, mergeable_ranks=ranks, special_tokens={})
    return lambda text: len(encoding.encode_ordinary(text))


def count_tokens(text: str) -> int:
    """Return the tokens of `text` in o200k_base, the byte-pair encoding of current OpenAI models."""
    return counter()(text)


@lru_cache(maxsize=20_000)
def count_definition_tokens(definition_json: bytes) -> int:
    """Return the tokens of one tool definition as JSON; cached, since the same definitions are counted repeatedly."""
    return count_tokens(definition_json.decode())
