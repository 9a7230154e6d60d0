"""The shipped search with one of its parts taken out, to see what the part is worth.

Parts are replaced by name in the module that uses them, so that the product carries no switch for them. A name that
moved raises AttributeError: then this list needs an edit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import numpy as np

from pml_gateway.index import search as search_module
from pml_gateway.index.evidence import Floats, Positions, Query
from pml_gateway.index.lexical import Words
from pml_gateway.index.names import NameIndex
from pml_gateway.index.search import Weighted
from pml_gateway.index.text import ToolDocument
from pml_gateway.index.verbs import Verbs

LEXICAL_SHARE = 0.3
"""Of the z-scores; the share that did best in the prototype."""


@dataclass(frozen=True, slots=True)
class Ablation:
    """One part taken out: replaced in the module of the search, or left out of the tools."""

    name: str
    replaced: Mapping[str, object] = field(default_factory=dict)
    document: Callable[[ToolDocument], ToolDocument] | None = None
    of_index: bool = False
    """Whether the part works while an index is built."""

    @property
    def rebuilds(self) -> bool:
        """Whether an index has to be built for it."""
        return self.of_index or self.document is not None

    def documents(self, documents: Sequence[ToolDocument]) -> list[ToolDocument]:
        """The tools as this search reads them."""
        return [self.document(document) if self.document else document for document in documents]


class Nameless(NameIndex):
    """Knows no names and corrects no slips."""

    def exact(self, query: str, *_: Any) -> list[int]:
        """None."""
        return []

    def near(self, query: str, *_: Any) -> list[int]:
        """None."""
        return []

    def spelled(self, query: str, *_: Any) -> str:
        """The query as it is."""
        return query


def z_scores(evidence: Weighted, query: Query, positions: Positions) -> Floats:
    """A fixed share of each side's z-scores over the candidates (n,): what most hybrid searches do."""
    total = np.zeros((len(query.texts), len(positions)), dtype=np.float32)
    cosines = np.zeros_like(total)
    for kind, weight in evidence:
        match kind:
            case Words():
                total += LEXICAL_SHARE * np.stack([_standardised(each) for each in kind.units(query, positions)])
            case Verbs():
                total += np.float32(weight) * kind.at(query, positions)
            case _:
                cosines += np.float32(weight) * kind.at(query, positions)
    total += (1 - LEXICAL_SHARE) * np.stack([_standardised(each) for each in cosines])
    return total


def _standardised(values: Floats) -> Floats:
    spread = float(values.std()) if len(values) else 0.0
    standardised: Floats = (values - values.mean()) / spread if spread else np.zeros_like(values)
    return standardised


ABLATIONS = (
    Ablation("no clauses", {"split_clauses": lambda *_: ()}),
    Ablation("no interleaving", {"interleaved": lambda strengths, *_: strengths}),
    Ablation("no verbs", {"VERBS_WEIGHT": 0.0}),
    Ablation("no server evidence", {"with_server_evidence": lambda strengths, *_: strengths}),
    Ablation("no names", {"NameIndex": Nameless}, of_index=True),
    Ablation("no words", {"WORDS_WEIGHT": 0.0}),
    Ablation("z-scores for evidence", {"weighted_sum": z_scores}),
    Ablation("servers unread", document=lambda document: replace(document, server="")),
    Ablation("parameters unread", document=lambda document: replace(document, parameters=())),
)


@contextmanager
def replaced(parts: Mapping[str, object], module: ModuleType = search_module) -> Iterator[None]:
    """The module with other parts, for as long as the context lasts; raises AttributeError for a part it lacks."""
    originals = {name: getattr(module, name) for name in parts}
    try:
        for name, part in parts.items():
            setattr(module, name, part)
        yield
    finally:
        for name, original in originals.items():
            setattr(module, name, original)
