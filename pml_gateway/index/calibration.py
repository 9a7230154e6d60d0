"""Calibration: turns raw evidence for a tool into a score whose thresholds mean coverage.

A score of 0.5 / 0.6 / 0.7 is where lists cut there still hold the right tool for 96 / 92 / 87 % of labelled intents.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from pml_gateway.errors import ModelError
from pml_gateway.index.embedder import Embedder, embed_query
from pml_gateway.index.evidence import Floats
from pml_gateway.paths import shipped_places

CALIBRATION_FILE = "calibration.json"

COVERAGE = ((0.3, 0.985), (0.5, 0.96), (0.6, 0.92), (0.7, 0.87), (0.8, 0.78), (0.9, 0.6), (0.99, 0.02))
"""(score, share of the right tools scoring at least this). 0.5 to 0.7 are promised; the others spread the rest."""

NOTHING_FITS = 0.3
"""All scores stay below this, the default of `search.min_score`, when even the best tool is too weak to be right."""

MIN_PROBE_SPREAD = 0.05
"""Minimum spread for mapping cosines: below it, a model hardly tells the probes apart, and stretching would only
enlarge noise."""

PROBES = (
    ("what is the temperature outside right now", "weather get current weather Returns current conditions for a city"),
    ("open a ticket about the broken login", "tracker create issue Creates an issue in a repository"),
    ("who is calling this function", "code find references Lists all places where a symbol is used"),
    ("put this text into a document on disk", "filesystem write file Writes content to a file, replacing it"),
    ("let the team know in the chat", "chat send message Posts a message to a channel"),
    ("when am I free on Friday", "calendar list events Returns events between two dates"),
    ("how many customers signed up last month", "database run query Executes a read-only SQL statement"),
    ("look this up on the internet", "web search Searches the web and returns result pages"),
    ("take a picture of this page", "browser screenshot Captures an image of the current page"),
    ("how do I get to the station", "maps directions Calculates a route between two places"),
    ("remember that I prefer tea", "memory add observation Stores a fact in the knowledge graph"),
    ("move ten euros to Anna", "bank transfer money Transfers an amount between accounts"),
    ("restart the crashed container", "docker restart Restarts a container by its id"),
    ("make this photo smaller", "image resize Changes the size of a picture"),
    ("reply that I will be late", "mail send email Sends an electronic message to recipients"),
    ("what changed since yesterday", "git log Shows the commit history of a branch"),
)
"""Intents and dense texts of the tools that serve them, to compare the cosines of two models."""

SHIPPED_MODEL = "minilm-tools-int8"


@dataclass(frozen=True, slots=True)
class Curve:
    """A monotone piecewise-linear map from evidence to a score.

    Evidence is the raw strength of a tool minus a share of the best one's: lists get short when one tool stands out.
    The best counts as at least `floor`, so all scores are low if nothing in the catalog fits. If even the best is
    weaker than `nothing`, no score reaches NOTHING_FITS.
    """

    knots: tuple[tuple[float, float], ...]
    """(evidence, score) pairs, both increasing."""
    share: float
    floor: float
    nothing: float = 0.0
    """Raw strength of the best tool, below which nothing serves the query."""

    def __post_init__(self) -> None:
        if len(self.knots) < 2 or any(a[0] >= b[0] or a[1] > b[1] for a, b in pairwise(self.knots)):
            raise ValueError(f"knots {self.knots} do not increase")

    def evidence(self, raw: Floats) -> Floats:
        """Return the evidence (n,) of all candidates of one query from their raw strengths (n,)."""
        best = max(float(raw.max(initial=self.floor)), self.floor)
        evidence: Floats = raw - np.float32(self.share * best)
        return evidence

    def evidence_of(self, score: float) -> float:
        """Return the least evidence that has a score."""
        evidence, scores = zip(*self.knots, strict=True)
        return float(np.interp(score, scores, evidence))

    def scores(self, raw: Floats) -> Floats:
        """Return the scores (n,) in [0, 1) of all candidates of one query from their raw strengths (n,)."""
        evidence, scores = zip(*self.knots, strict=True)
        interpolated: Floats = np.interp(self.evidence(raw), evidence, scores).astype(np.float32)
        best = float(raw.max(initial=0.0))
        if best < self.nothing:
            interpolated *= np.float32(NOTHING_FITS * max(best, 0.0) / self.nothing)
        return interpolated


LEXICAL_CURVE = Curve(
    knots=(
        (-2.0198, 0.0),
        (-1.1558, 0.3),
        (-0.5876, 0.5),
        (-0.2918, 0.6),
        (-0.1114, 0.7),
        (0.0998, 0.8),
        (0.3698, 0.9),
        (0.6915, 0.99),
        (1.5555, 0.999),
    ),
    share=0.8,
    floor=2.0,
)
"""Curve for log(1 + BM25) if there is no model, fitted by `models/calibrate.py`. Coverage is measured on intents that
share a word with the right tool; without one the lexical index cannot find it at any threshold."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The mapping from the cosines of one model to scores."""

    fused: Curve
    dense: Curve
    related: float
    """Mean cosine of the probe pairs below."""
    unrelated: float
    """Mean cosine of probes that do not belong together."""
    scale: float = 1.0
    offset: float = 0.0

    @classmethod
    def read(cls, directory: Path) -> Calibration:
        """Read the calibration stored with a model; raises ModelError when it is missing or malformed."""
        path = directory / CALIBRATION_FILE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                fused=_curve(content["fused"]),
                dense=_curve(content["dense"]),
                related=float(content["probes"]["related"]),
                unrelated=float(content["probes"]["unrelated"]),
            )
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise ModelError(
                f"the calibration {path} cannot be read: {exc}",
                hint="reinstall pml-gateway, or make the file again with models/calibrate.py",
                details={"path": str(path)},
            ) from exc

    def transferred(self, embedder: Embedder) -> Calibration:
        """Return this calibration for another model: its cosines are mapped linearly so that the probes agree."""
        related, unrelated = probe_cosines(embedder)
        spread = related - unrelated
        if spread < MIN_PROBE_SPREAD:
            return self
        scale = (self.related - self.unrelated) / spread
        return replace(self, scale=scale, offset=self.unrelated - scale * unrelated)

    def cosines(self, cosines: Floats) -> Floats:
        """Return cosines of the model (n,) on the scale of the curves."""
        return cosines * np.float32(self.scale) + np.float32(self.offset)


@runtime_checkable
class CalibratedEmbedder(Protocol):
    """An embedder that carries the calibration fitted for it."""

    @property
    def calibration(self) -> Calibration:
        """Return the calibration fitted on labelled intents with exactly this model."""
        ...


def probe_cosines(embedder: Embedder) -> tuple[float, float]:
    """Return the mean cosines of (related, unrelated) probe pairs."""
    queries = np.stack([embed_query(embedder, query) for query, _ in PROBES])
    tools = embedder.encode([tool for _, tool in PROBES])
    cosines = np.einsum("qd,td->qt", queries, tools)
    own = np.eye(len(PROBES), dtype=bool)
    return float(cosines[own].mean()), float(cosines[~own].mean())


def fit_knots(
    evidence: npt.NDArray[np.float64], weights: npt.NDArray[np.float64], margin: float = 0.0
) -> tuple[tuple[float, float], ...]:
    """Return knots that give COVERAGE plus a margin on the evidence (n,) of right tools with the given weights (n,)."""
    order = np.argsort(evidence)
    passed = np.cumsum(weights[order]) / weights.sum()
    inner = [(float(evidence[order][np.searchsorted(passed, 1 - share - margin)]), score) for score, share in COVERAGE]
    span = inner[2][0] - inner[0][0]
    return ((inner[0][0] - span, 0.0), *inner, (inner[-1][0] + span, 0.999))


def _curve(content: Mapping[str, Any]) -> Curve:
    knots: Sequence[Sequence[float]] = content["knots"]
    return Curve(
        tuple((float(evidence), float(score)) for evidence, score in knots),
        float(content["share"]),
        float(content["floor"]),
        float(content.get("nothing", 0.0)),
    )


def shipped_directory() -> Path:
    """Return the directory of the shipped model: inside an installed package, or next to it in a checkout."""
    places = shipped_places("models", SHIPPED_MODEL)
    for place in places:
        if place.is_dir():
            return place
    raise ModelError(
        f"the shipped embedding model is missing: neither {places[0]} nor {places[1]} exists",
        hint="reinstall pml-gateway, or name another model in search.model",
    )


@cache
def shipped_calibration() -> Calibration:
    """Return the calibration of the shipped model, the reference for models without one of their own."""
    return Calibration.read(shipped_directory())
