"""Search quality: hits of an index of files, or of the gateway, for labelled queries."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from pml_gateway.config.settings import SearchSettings
from pml_gateway.errors import GatewayError
from pml_gateway.exposure.schema_text import signature
from pml_gateway.exposure.token_count import count_tokens
from pml_gateway.gateway.state import GatewayState
from pml_gateway.index.evaluation import (
    HardTool,
    LabelledQuery,
    QueryOutcome,
    descriptions,
    figures,
    hard_tools,
    input_schema,
    missed_none,
)
from pml_gateway.index.search import ToolIndex
from pml_gateway.index.text import ToolDocument, well_formed
from pml_gateway.policy.principal import LOCAL
from pml_gateway.text import first_sentence
from pml_gateway.types import JsonObject, Ranking

ANSWER_HITS = 5
TIMED_HITS = 10
LISTED_HITS = 1_000
"""Deep enough for every tool that reaches the lowest threshold; searched apart, so that it costs no time measured."""

Scored = Sequence[tuple[str, float]]
"""(key, score), best first."""


@dataclass(frozen=True, slots=True)
class MeasuredIndex:
    """Input of a measurement."""

    documents: Sequence[ToolDocument]
    search: Callable[[str, int], tuple[Scored, Ranking]]
    """(query, limit) -> at most `limit` hits and the evidence that ordered them."""
    hit_text: Callable[[str], str]
    """Fields of one hit that a model reads, by key."""
    model: str
    min_score: float
    _tokens: dict[str, int] = field(default_factory=dict)

    def hit_tokens(self, key: str) -> int:
        """Tokens of one hit."""
        if key not in self._tokens:
            self._tokens[key] = count_tokens(self.hit_text(key))
        return self._tokens[key]


def of_index(index: ToolIndex, rows: Mapping[str, JsonObject], model: str, ranking: Ranking) -> MeasuredIndex:
    """Tools of files: an index over them and their rows by key."""

    def search(query: str, limit: int) -> tuple[Scored, Ranking]:
        result = index.search(query, limit=limit, ranking=ranking)
        return [(hit.key, hit.score) for hit in result.hits], result.ranking

    def hit_text(key: str) -> str:
        return _hit_text(key, rows[key].get("description") or "", input_schema(rows[key]))

    return MeasuredIndex(index.documents, search, hit_text, model, SearchSettings().min_score)


def of_state(state: GatewayState, ranking: Ranking | None) -> MeasuredIndex:
    """Return the tools of the gateway that a local client may search, ranked as configured unless said otherwise.

    Raises:
        GatewayError: while there is no index.
    """
    if state.index is None:
        raise GatewayError("the tools are not indexed yet", hint="run the command again")
    view = state.view(LOCAL)
    tools = {tool.qualified_name: tool for tool in view.tools}

    def search(query: str, limit: int) -> tuple[Scored, Ranking]:
        found = state.search(view, query, limit, ranking=ranking)
        return [(tool.qualified_name, score) for tool, score in found.tools], found.ranking

    def hit_text(key: str) -> str:
        tool = tools[key]
        return _hit_text(key, tool.description or tool.title, tool.definition["inputSchema"])

    documents = [document for document in state.index.documents if document.key in tools]
    return MeasuredIndex(documents, search, hit_text, state.settings.search.model, state.settings.search.min_score)


def measure(subject: MeasuredIndex, labelled: Sequence[LabelledQuery]) -> tuple[list[QueryOutcome], Ranking]:
    """Return the outcome of each query, and the evidence that ordered them: words alone where there is no model."""
    _, ranking = subject.search(labelled[0].text, TIMED_HITS)  # the first search loads what the others find loaded
    outcomes: list[QueryOutcome] = []
    for query in labelled:
        started = time.perf_counter()
        first, _ = subject.search(query.text, TIMED_HITS)
        milliseconds = (time.perf_counter() - started) * 1000
        listed, _ = subject.search(query.text, LISTED_HITS)
        tokens = sum(subject.hit_tokens(key) for key, _ in first[:ANSWER_HITS])
        outcomes.append(QueryOutcome(query, _deepened(first, listed), milliseconds, tokens))
    return outcomes, ranking


def _deepened(first: Scored, listed: Scored) -> tuple[tuple[str, float], ...]:
    """Return the hits as first answered, then the deeper ones."""
    answered = dict(first)
    return (*first, *((key, score) for key, score in listed if key not in answered))


def _hit_text(key: str, description: str, schema: JsonObject) -> str:
    hit = {"name": key, "score": 0.999, "signature": signature(key, schema), "description": first_sentence(description)}
    return well_formed(json.dumps(hit, ensure_ascii=False, separators=(",", ":")))


class SearchQuality(TypedDict):
    """Result of a measurement: `found` queries find all of their tools among the first five hits.

    `easy` ones are a tool's own description. `impossible` has a missing tool of each query that needs one.
    """

    figures: dict[str, float | str]
    queries: int
    found: int
    easy: int
    impossible: list[str]
    hard_tools: list[HardTool]


def evaluate(subject: MeasuredIndex, labelled: Sequence[LabelledQuery], *, of_examples: bool = False) -> SearchQuality:
    """Measure, and sum up the outcomes; `of_examples` counts tools with examples also if there are none. Blocking."""
    known = {document.key for document in subject.documents}
    lacking = [[group for group in query.groups if group.isdisjoint(known)] for query in labelled]
    outcomes, ranking = measure(subject, labelled)
    with_examples = sum(bool(document.examples) for document in subject.documents)
    return {
        "figures": {
            **figures(outcomes, min_score=subject.min_score),
            **({"with_examples": with_examples} if with_examples or of_examples else {}),
            "model": "none" if ranking is Ranking.LEXICAL else subject.model,
            "ranking": ranking.value,
        },
        "queries": len(outcomes),
        "found": sum(missed_none(outcome) for outcome in outcomes),
        "easy": descriptions(subject.documents, outcomes),
        "impossible": [min(groups[0]) for groups in lacking if groups],
        "hard_tools": hard_tools(subject.documents, outcomes),
    }
