"""The classifier: how much a sentence sounds like those that poison definitions, by its kinds of words and rules."""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
import numpy.typing as npt

from pml_gateway.errors import ModelError
from pml_gateway.paths import shipped_places
from pml_gateway.trust.lexicon import END, PLAIN, Kind, Reading
from pml_gateway.trust.rules import RULES, RuleMatch

_KINDS = {kind.value: at for at, kind in enumerate(Kind)}
_RULES = {rule.name: at for at, rule in enumerate(RULES)}
NEAR = 12
"""Words between two kinds up to which they count as a pair."""

TRAITS = ("data", "name", "encoded", "hidden", "shouted", "quoted", "inspects", "excused")
WORDS, WORD_PAIRS, PIECES = 8_192, 32_768, 16_384
"""Stems, pairs of stems and pieces of words, each told apart by a hash of this many values."""

MIN_WORDS = 4
"""Words from which a sentence without a word of a known kind is weighed too: it may be in another language."""

_PAIRS = len(_KINDS)
MATCHES = _PAIRS + len(_KINDS) ** 2
TRAITS_FROM = MATCHES + len(_RULES)
HASHED = TRAITS_FROM + len(TRAITS)
HASHED_PAIRS = HASHED + WORDS
HASHED_PIECES = HASHED_PAIRS + WORD_PAIRS
FEATURES = HASHED_PIECES + PIECES

WEIGHTS_FILE = "weights.npy"

Features = npt.NDArray[np.int32]
"""Positions in the weights."""

_ENDINGS = ("ing", "ies", "ed", "es", "s", "ly")
SIZES = (4, 5)
SHORT_SIZES = (2, 3)

HANGUL = "\u1100"
"""Letters from here on are syllables, of which few make a word."""

MIN_STEM = 3
MIN_PIECED = 6
MAX_WORD = 40

FULL_KINDS = 30
"""Kinds and pairs of kinds up to which each counts in full."""

FULL_HASHED = 60
"""Hashed features up to which each counts in full: those of about ten words."""


def features_of(reading: Reading, start: int, end: int, found: Sequence[RuleMatch], traits: Sequence[str]) -> set[int]:
    """Return the features of a sentence as positions in the weights; none for a short one without a known word."""
    letters = reading.letters
    kinds = [(at, _KINDS[letters[at]]) for at in range(start, end) if letters[at] not in (PLAIN, END)]
    if not kinds and end - start < MIN_WORDS:
        return set()
    has = {kind for _, kind in kinds}
    for position, (at, kind) in enumerate(kinds):
        base = _PAIRS + kind * len(_KINDS)
        for other, following in kinds[position + 1 :]:
            if other - at > NEAR:
                break
            has.add(base + following)
    has.update(MATCHES + _RULES[match.rule.name] for match in found if start <= match.start < end)
    has.update(TRAITS_FROM + TRAITS.index(trait) for trait in traits)
    before = ""
    for word in reading.words[start:end]:
        stem, places = _places(word)
        has.update(places)
        has.add(HASHED_PAIRS + zlib.crc32(f"{before} {stem}".encode()) % WORD_PAIRS)
        before = stem
    return has


@lru_cache(maxsize=16_384)
def _places(word: str) -> tuple[str, tuple[int, ...]]:
    """Return the stem of a word, and the positions of the stem and of the word's pieces."""
    word = word[:MAX_WORD]
    stem = next(
        (word[: -len(each)] for each in _ENDINGS if word.endswith(each) and len(word) - len(each) >= MIN_STEM), word
    )
    whole = f"^{word}$"
    found = {HASHED + zlib.crc32(stem.encode()) % WORDS}
    if len(word) >= MIN_PIECED or not word.isascii():
        found.update(
            HASHED_PIECES + zlib.crc32(whole[at : at + size].encode()) % PIECES
            for size in (SIZES if word < HANGUL else SHORT_SIZES)
            for at in range(len(whole) - size + 1)
        )
    return stem, tuple(found)


@dataclass(frozen=True, slots=True)
class Classifier:
    """A logistic regression over the features of a sentence; the last weight is that of every sentence."""

    weights: npt.NDArray[np.float32]

    def score(self, features: Collection[int], bonus: float = 0.0) -> float:
        """Return how likely a sentence is an attack, between 0 and 1; `bonus` is added to the logit."""
        if not features:
            return 0.0
        return 1 / (1 + math.exp(-self.logit(np.fromiter(features, dtype=np.int32)) - bonus))

    def logit(self, features: Features) -> float:
        """Return the same before it is brought between 0 and 1."""
        return float(self.weights[features] @ shares_of(features) + self.weights[-1])


def shares_of(features: Features) -> npt.NDArray[np.float32]:
    """Return how much each feature counts: less in long sentences, where many small weights meet."""
    shares = np.ones(len(features), dtype=np.float32)
    for is_of_these, full in ((features < MATCHES, FULL_KINDS), (features >= HASHED, FULL_HASHED)):
        shares[is_of_these] = np.sqrt(min(1.0, full / max(int(np.count_nonzero(is_of_these)), 1)))
    return shares


@cache
def shipped_classifier() -> Classifier:
    """Return the classifier with the weights of the package, or of the checkout."""
    places = shipped_places("models", "lint")
    for place in places:
        if (place / WEIGHTS_FILE).is_file():
            return Classifier(np.load(place / WEIGHTS_FILE).astype(np.float32))
    raise ModelError(
        f"the lint's weights are missing: neither {places[0]} nor {places[1]} has a {WEIGHTS_FILE}",
        hint="reinstall pml-gateway",
    )
