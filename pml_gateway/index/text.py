"""Tool text: turns tool definitions and queries into the text that is embedded and the tokens that are matched."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

MAX_QUERY_CHARACTERS = 4_000
"""Maximum length of a query; the rest is cut: the model reads 256 tokens, and no request for a tool needs more."""

MAX_DESCRIPTION_CHARACTERS = 4_000
"""Maximum length of a description; longer ones are manuals, whose purpose is given at the beginning."""

MAX_EXAMPLES = 16
"""Maximum number of examples of one tool: eight are nearly as good as more, and each costs a vector."""

NAME_WEIGHT = 2
"""Weight of a word of the name, against one in the description: names are short and chosen with care."""

_WORD_BREAK = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SEPARATORS = re.compile(r"[\W_]+")
_TOKEN = re.compile(r"[^\W_]+")
UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
"""Scripts written without spaces, matched by pairs of characters."""

_STOP_WORD_TEXT = """
a about all also am an and any are as at be been being both but by can could did do does doing done each for from give
had has have having he help her here hers him his how i if in into is it its just let like may me might mine more most
must my need no nor not of off on once only or other our ours out over own please shall she should so some such than
that the their theirs them then there these they this those to too under until up us very want was we were what when
where which while who whom whose why will with would you your yours
"""
_STOP_WORDS = frozenset(_STOP_WORD_TEXT.split())


@dataclass(frozen=True, slots=True)
class ToolDocument:
    """The text of one tool for search; `key` is its qualified name, unique in an index."""

    key: str
    server: str
    name: str
    title: str
    description: str
    parameters: tuple[str, ...]
    examples: tuple[str, ...] = ()
    """Example queries that this tool serves, at most MAX_EXAMPLES."""
    is_destructive: bool = False
    """True if the tool says of itself that it may destroy something."""


def split_words(identifier: str) -> str:
    """Return the words of a snake_case, kebab-case or camelCase identifier, separated by single spaces."""
    return _SEPARATORS.sub(" ", _WORD_BREAK.sub(" ", identifier)).strip()


def well_formed(text: str) -> str:
    """Return the text with lone surrogates, which JSON can carry and UTF-8 cannot, replaced by question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def dense_text(document: ToolDocument) -> str:
    """Return the text of a tool that is embedded.

    Plain words without punctuation between the parts: colons or full stops there lost up to .05 nDCG@10.
    """
    name = split_words(document.name)
    title = "" if split_words(document.title).casefold() == name.casefold() else document.title
    described = document.description[:MAX_DESCRIPTION_CHARACTERS]
    return well_formed(" ".join(" ".join((split_words(document.server), name, title, described)).split()))


def lexical_tokens(document: ToolDocument) -> Counter[str]:
    """Return the stems of a tool with their weighted counts."""
    counts: Counter[str] = Counter()
    for text, weight in (
        (document.name, NAME_WEIGHT),
        (document.server, 1),
        (document.title, 1),
        (document.description[:MAX_DESCRIPTION_CHARACTERS], 1),
        (" ".join(document.parameters), 1),
    ):
        for token in _stems(text):
            counts[token] += weight
    return counts


def query_tokens(query: str) -> tuple[str, ...]:
    """Return the distinct stems of a query, in order of appearance."""
    return tuple(dict.fromkeys(_stems(query[:MAX_QUERY_CHARACTERS])))


def _stems(text: str) -> list[str]:
    words: list[str] = []
    for token in _TOKEN.findall(_WORD_BREAK.sub(" ", well_formed(text))):
        word = token.casefold()
        if UNSPACED.search(word):
            words.extend(_character_pairs(word))
        elif word not in _STOP_WORDS:
            words.append(word)
    return _stemmer()(words)


def _character_pairs(word: str) -> list[str]:
    return [word[start : start + 2] for start in range(max(1, len(word) - 1))]


@cache
def _stemmer() -> Callable[[list[str]], list[str]]:
    import Stemmer  # imported late, like every heavy library: see pml_gateway/index/__init__.py

    stem: Callable[[list[str]], list[str]] = Stemmer.Stemmer("english").stemWords
    return stem
