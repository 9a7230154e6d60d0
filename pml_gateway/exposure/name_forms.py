"""The words of a name: singular, spelled out, with synonyms, opposites and units."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache

from pml_gateway.exposure import name_words
from pml_gateway.text import words_of

MAX_WORDS = 12
"""Words of a name that are read."""

Words = tuple[str, ...]

GENERIC = frozenset(name_words.GENERIC.split())

BOUNDED = frozenset(name_words.BOUNDED.split())

STOPS = frozenset(name_words.STOPS.split())

KINDS = frozenset(name_words.KINDS.split())

_IRREGULAR = {
    "ids": "id",
    "people": "person",
    "children": "child",
    "indices": "index",
    "criteria": "criterion",
    "indexes": "index",
}

_UNCOUNTED = frozenset(name_words.UNCOUNTED.split())


@lru_cache(maxsize=4096)
def forms_of(name: str) -> tuple[Words, ...]:
    """Return the words of a name in the singular, without abbreviations; and again with phrases as one word."""
    words = tuple(expanded(part) for word in words_of(name)[:MAX_WORDS] for part in _parts(word))
    joined: list[str] = []
    at = 0
    while at < len(words):
        length = next((size for size in (3, 2) if words[at : at + size] in _phrases()), 1)
        joined.append(_phrases()[words[at : at + length]] if length > 1 else words[at])
        at += length
    plain, whole = _counted(words), _counted(tuple(joined))
    return (plain,) if whole == plain else (plain, whole)


def _counted(words: Words) -> Words:
    """Return the words with `number` told apart: the number of issues is a count, and an issue's number names it."""
    if len(words) < 2:
        return words
    first = "count" if words[0] == "number" else words[0]
    unit = known_units().get(words[-1])
    if unit is not None:
        return (first, *words[1:-1], unit[1])
    return (first, *words[1:-1], "id" if words[-1] == "number" else words[-1])


def expanded(word: str) -> str:
    """Return a word in the singular, spelled out."""
    one = singular(word)
    return _abbreviations().get(word) or _abbreviations().get(one) or one


def _parts(word: str) -> Words:
    """Return the known words that a word is made of: `pagesize`; the word itself otherwise."""
    if is_known_word(word) or len(word) > 24:
        return (word,)
    for at in range(len(word) - 3, 2, -1):
        if is_known_word(word[:at]) and is_known_word(word[at:]):
            return (word[:at], word[at:])
    return (word,)


@cache
def _known_words() -> frozenset[str]:
    phrases = {word for words in _phrases() for word in words}
    named = (_synonyms(), _abbreviations(), opposites(), _distinct(), phrases, KINDS, GENERIC, BOUNDED)
    return frozenset(name_words.WORDS.split()).union(*named)


def is_known_word(word: str) -> bool:
    """Return True if a word is in a table, and so no slip of another one."""
    return word in _known_words() or singular(word) in _known_words()


def singular(word: str) -> str:
    """Return a word in the singular."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if len(word) < 4 or word in _UNCOUNTED or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    return word[:-2] if word.endswith(("sses", "shes", "ches", "xes", "zes")) else word[:-1]


@cache
def _abbreviations() -> Mapping[str, str]:
    rows = rows_of(name_words.ABBREVIATIONS)
    return {row[0]: row[1] for row in rows}


@cache
def _phrases() -> Mapping[Words, str]:
    rows = (row.split(":") for row in name_words.PHRASES.split("|"))
    return {tuple(expanded(word) for word in words.split()): meaning.strip() for words, meaning in rows}


@cache
def _synonyms() -> Mapping[str, frozenset[int]]:
    found: dict[str, frozenset[int]] = {}
    for number, words in enumerate(rows_of(name_words.SYNONYMS)):
        for word in words:
            found[word] = found.get(word, frozenset()) | {number}
    return found


@cache
def opposites() -> Mapping[str, frozenset[str]]:
    """Return the other sides of each word that has some."""
    return _others(name_words.SIDES)


@cache
def alternatives() -> Mapping[str, frozenset[str]]:
    """Return the other ways to say which one, for each word that says so."""
    return _others(name_words.ALTERNATIVES)


@cache
def _distinct() -> Mapping[str, frozenset[str]]:
    return _others(f"{name_words.DISTINCT} | {name_words.ALTERNATIVES}")


def _others(table: str) -> Mapping[str, frozenset[str]]:
    """Return each word of a table with the others of its rows."""
    found: dict[str, frozenset[str]] = {}
    for words in rows_of(table):
        for word in words:
            found[word] = found.get(word, frozenset()) | (frozenset(words) - {word})
    return found


def rows_of(table: str) -> Iterator[Words]:
    """Yield the words of each row of a table."""
    return (tuple(row.split()) for row in table.split("|"))


def are_opposed(one: str, other: str) -> bool:
    """Return True if the words are two sides of one thing, or never the same."""
    return other in opposites().get(one, ()) or other in _distinct().get(one, ())


def are_synonyms(one: str, other: str) -> bool:
    """Return True if the words may mean the same."""
    readings = _synonyms()
    return not readings.get(one, frozenset()).isdisjoint(readings.get(other, frozenset())) and not are_opposed(
        one, other
    )


@lru_cache(maxsize=4096)
def unit_of(name: str) -> tuple[str, str] | None:
    """Return the dimension and the unit that a name says."""
    words = words_of(name)
    for at, word in enumerate(words):
        found = known_units().get(word) or known_units().get(singular(word))
        if found is not None and (len(word) > 2 or (at == len(words) - 1 and at > 0)):
            return found
    return None


def unit_in(text: str, unit: tuple[str, str]) -> tuple[str, str] | None:
    """Return the only unit of the same dimension in a text."""
    found = {
        known_units().get(word) or known_units().get(singular(word))
        for word in re.findall(r"[a-z]{2,}", text)
        if word not in STOPS
    }
    same = [each for each in found if each is not None and each[0] == unit[0]]
    return same[0] if len(same) == 1 else None


def is_unit(word: str) -> bool:
    """Return True for the name of a unit."""
    return word in known_units() or f"{word}s" in known_units()


def plural_of_unit(unit: str) -> str:
    """Return a unit as it follows a number."""
    return name_words.PLURALS.get(unit, unit if unit.endswith("s") else f"{unit}s")


@cache
def known_units() -> Mapping[str, tuple[str, str]]:
    """Return the dimension and the usual name of each unit."""
    rows = (row.split(": ") for row in name_words.UNITS.strip().splitlines())
    return {word: (dimension, words[0]) for dimension, units in rows for words in rows_of(units) for word in words}
