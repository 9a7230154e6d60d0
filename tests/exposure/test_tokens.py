"""Tokens are counted with a real byte-pair encoding, and the meta-tools stay within their budget."""

from __future__ import annotations

import gzip
import hashlib
import json
import sys

import pytest

from benchmarks.token_figures import SYSTEMS
from pml_gateway.config.settings import KNOWN_META_TOOLS
from pml_gateway.exposure.token_count import (
    TOKENIZER,
    VOCABULARY,
    count_definition_tokens,
    count_tokens,
    counter,
    rs_bpe_counter,
    tiktoken_counter,
)
from tests.support.meta import meta_tool_definitions


@pytest.mark.parametrize(
    ("text", "count"),
    # Published examples of o200k_base, from the tiktoken cookbook.
    [("", 0), ("hello world", 2), ("antidisestablishmentarianism", 6), ("2 + 2 = 4", 7), ("お誕生日おめでとう", 8)],
)
def test_known_texts_have_their_known_number_of_tokens(text: str, count: int) -> None:
    assert TOKENIZER == "o200k_base"
    assert count_tokens(text) == count
    assert count_definition_tokens(text.encode()) == count


def test_the_shipped_vocabulary_is_the_published_one() -> None:
    (file,) = [place for place in VOCABULARY if place.is_file()]
    published = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
    assert hashlib.sha256(gzip.decompress(file.read_bytes())).hexdigest() == published


def test_both_libraries_count_alike() -> None:
    pytest.importorskip("tiktoken")
    count, expected = tiktoken_counter(), rs_bpe_counter()
    definitions = [json.dumps(definition) for definition in meta_tool_definitions(KNOWN_META_TOOLS, SYSTEMS)]
    hard = [
        "<|endoftext|>",
        " " * 999 + "x",
        "a" * 5_000,
        "1" * 1_001,
        "\r\n\t \n",
        "I'LL don't",
        "e\u0301 ß İ 𝒳 👩‍👩‍👧",
        "漢" * 300,
    ]
    for text in (*definitions, *hard):
        assert count(text) == expected(text), text[:40]


def test_python_without_the_first_library_counts_with_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tiktoken")
    monkeypatch.setitem(sys.modules, "rs_bpe", None)
    counter.cache_clear()
    try:
        assert count_tokens("antidisestablishmentarianism") == 6
    finally:
        counter.cache_clear()


def test_search_schema_and_call_cost_at_most_450_tokens_with_twelve_systems_named() -> None:
    definitions = meta_tool_definitions(("search_tools", "tool_schema", "call_tool"), SYSTEMS)
    assert [definition["name"] for definition in definitions] == ["search_tools", "tool_schema", "call_tool"]
    assert all(system in definitions[0]["description"] for system in SYSTEMS)
    assert count_tokens(json.dumps(definitions, separators=(",", ":"))) <= 450


def test_all_default_meta_tools_cost_at_most_830_tokens_with_twelve_systems_named() -> None:
    definitions = meta_tool_definitions(KNOWN_META_TOOLS, SYSTEMS)
    assert definitions[-1]["name"] == "read_result"
    assert count_tokens(json.dumps(definitions, separators=(",", ":"))) <= 830
    assert count_tokens(json.dumps(definitions[:-1], separators=(",", ":"))) <= 750


def test_more_than_twelve_systems_are_counted_instead_of_named() -> None:
    (search,) = meta_tool_definitions(["search_tools"], [*SYSTEMS, "thirteenth", "fourteenth"])
    assert "context7 and 2 more." in search["description"]
    assert "thirteenth" not in search["description"]


def test_without_any_system_the_search_says_so() -> None:
    assert "No system is available now." in meta_tool_definitions(["search_tools"], [])[0]["description"]
