"""The classifier: how much a sentence sounds like those that poison definitions, by its kinds of words and rules."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pml_gateway.errors import ModelError
from pml_gateway.trust.lexicon import END, PLAIN, Kind, Reading
from pml_gateway.trust.rules import RULES, Match

_KINDS = {kind.value: at for at, kind in enumerate(Kind)}
_RULES = {rule.name: at for at, rule in enumerate(RULES)}
NEAR = 12
"""Words between two kinds up to which they count as a pair."""

TRAITS = ("data", "name", "encoded", "hidden", "shouted", "opens", "short")
BUCKETS = 4096
"""Words and pairs of words are told apart by a hash; a quarter of them is used."""

_PAIRS = len(_KINDS)
MATCHES = _PAIRS + len(_KINDS) ** 2
TRAITS_FROM = MATCHES + len(_RULES)
HASHED = TRAITS_FROM + len(TRAITS)
FEATURES = HASHED + BUCKETS

WEIGHTS_FILE = "weights.npy"
_PACKAGE = Path(__file__).resolve().parents[1]


def features_of(reading: Reading, start: int, end: int, found: Sequence[Match], traits: Sequence[str]) -> set[int]:
    """The features that a sentence has, as positions in the weights; nothing for one without a telling word."""
    letters = reading.letters
    kinds = [(at, _KINDS[letters[at]]) for at in range(start, end) if letters[at] not in (PLAIN, END)]
    if not kinds:
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
        has.add(HASHED + zlib.crc32(word.encode()) % BUCKETS)
        has.add(HASHED + zlib.crc32(f"{before} {word}".encode()) % BUCKETS)
        before = word
    return has


@dataclass(frozen=True, slots=True)
class Classifier:
    """A logistic regression over the features of a sentence; the last weight is that of every sentence."""

    weights: npt.NDArray[np.float32]

    def score(self, features: set[int]) -> float:
        """Between 0 and 1; `models/build_lint.py` puts the threshold at one half."""
        if not features:
            return 0.0
        logit = float(self.weights[list(features)].sum() + self.weights[-1])
        return float(1 / (1 + np.exp(-logit)))


@cache
def shipped_classifier() -> Classifier:
    """The weights that lie in the package, or beside it in a checkout."""
    places = (_PACKAGE / "_shipped" / "models" / "lint", _PACKAGE.parent / "models" / "lint")
    for place in places:
        if (place / WEIGHTS_FILE).is_file():
            return Classifier(np.load(place / WEIGHTS_FILE).astype(np.float32))
    raise ModelError(
        f"the lint's weights are missing: neither {places[0]} nor {places[1]} has a {WEIGHTS_FILE}",
        hint="reinstall pml-gateway",
    )
