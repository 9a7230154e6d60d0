"""Counts the tokens that a model reads."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Protocol

TOKENIZER = "o200k_base"


class _Tokenizer(Protocol):
    def count(self, text: str) -> int: ...


@cache
def _tokenizer() -> _Tokenizer:
    # The vocabulary takes 0.2 s and 60 MB to load, which only counting commands and `max_tokens` need.
    from rs_bpe import openai

    tokenizer: _Tokenizer = openai.o200k_base()
    return tokenizer


def count_tokens(text: str) -> int:
    """Tokens of `text` in o200k_base, the byte-pair encoding of current OpenAI models (rs-bpe carries it)."""
    return _tokenizer().count(text)


@lru_cache(maxsize=20_000)
def count_definition_tokens(definition_json: bytes) -> int:
    """Tokens of one tool definition as JSON; remembered, since the same definitions are counted again and again."""
    return count_tokens(definition_json.decode())
