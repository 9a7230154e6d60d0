"""Evaluation of search: labelled queries, quality figures, and the tools that are hard to find."""

from __future__ import annotations

import json
import math
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles
from typing import Any, TypedDict, TypeGuard

from pml_gateway.errors import InvalidInputError
from pml_gateway.index.names import squash
from pml_gateway.index.text import MAX_EXAMPLES, UNSPACED, ToolDocument, split_words
from pml_gateway.text import first_sentence
from pml_gateway.types import JsonObject

TOOL_LAYOUT = 'a tool is {"id", "name", "server"?, "title"?, "description"?, "input_schema"?}'
QUERY_LAYOUT = 'a query is {"query", "gold": [tool ids], "gold_groups"?: [[alternatives], ...]}'
EXAMPLES_LAYOUT = 'a row is {"id": a tool\'s id, "examples": [texts]}'

SHOWN = 80
"""Maximum characters of a faulty row in an error message."""

BYTE_ORDER_MARK = "\ufeff"
"""Character that some editors put at the beginning of a file."""

DEPTH = 10
"""Number of hits that ranking figures consider, whatever their scores."""

RECALL_DEPTHS = (1, 3, 5, 10)
THRESHOLDS = (0.5, 0.6, 0.7)

LIST_CAP = 20
"""Maximum length of the lists whose lengths are reported: `max_underlying_tools` of the preset `hybrid_balanced`."""

FOUND_WITHIN = 5
"""Default number of hits in a `search_tools` answer; a tool beyond them counts as missed."""

FEW_WORDS = 4
"""Words below which a description is too short: `Get the user` says no more than the name."""

RIVALS_NAMED = 3


@dataclass(frozen=True, slots=True)
class LabelledQuery:
    """A query and the tools it needs: one key of each group, no matter which."""

    text: str
    groups: tuple[frozenset[str], ...]


def read_rows(lines: Iterable[str], source: str) -> list[JsonObject]:
    """Return the JSON objects of a JSONL file, without empty lines; raise an InvalidInputError that names the line."""
    texts = (line.removeprefix(BYTE_ORDER_MARK) for line in lines)
    return [_object(line, f"{source}:{number}") for number, line in enumerate(texts, 1) if line.strip()]


def tool_document(row: JsonObject) -> ToolDocument:
    """Return the document of a row as in TOOL_LAYOUT, keyed by its id."""
    properties = input_schema(row).get("properties")
    return ToolDocument(
        key=row["id"],
        server=row.get("server") or "",
        name=row["name"],
        title=row.get("title") or "",
        description=row.get("description") or "",
        parameters=tuple(properties) if isinstance(properties, dict) else (),
    )


def tool_documents(rows: Iterable[JsonObject], source: str) -> Iterator[ToolDocument]:
    """Yield the documents of all rows; raise an InvalidInputError if one has no id or name, or a field is not text."""
    for row in rows:
        missing = [field for field in ("id", "name") if not _is_text(row.get(field))]
        if missing:
            raise InvalidInputError(
                f"a tool in {source} has no {' and no '.join(missing)}: {str(row)[:SHOWN]}", hint=TOOL_LAYOUT
            )
        for field in ("server", "title", "description"):
            if not isinstance(row.get(field), str | None):
                raise InvalidInputError(
                    f"the {field} of tool {row['id']!r} in {source} is no text: {str(row[field])[:SHOWN]}",
                    hint=TOOL_LAYOUT,
                )
        yield tool_document(row)


def labelled_queries(rows: Iterable[JsonObject], source: str) -> Iterator[LabelledQuery]:
    """Yield the queries of all rows; `gold_groups` takes precedence over `gold`, whose tools are all needed.

    Duplicate tools and groups count once. Raises InvalidInputError for a row of another layout.
    """
    for row in rows:
        if not _is_text(row.get("query")):
            raise InvalidInputError(f"a query in {source} has no text: {str(row)[:SHOWN]}", hint=QUERY_LAYOUT)
        groups = row.get("gold_groups") or _alone(row.get("gold"))
        if not _is_list(groups) or not all(_is_list(group) and all(map(_is_text, group)) for group in groups):
            raise InvalidInputError(
                f"the query {row['query'][:SHOWN]!r} in {source} names no right tools: {str(groups)[:SHOWN]}",
                hint=QUERY_LAYOUT,
            )
        yield LabelledQuery(row["query"], tuple(dict.fromkeys(frozenset(group) for group in groups)))


def tool_examples(rows: Iterable[JsonObject], source: str, tools: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return the example queries for each tool by its id, which must be one of `tools`.

    Raises InvalidInputError for a row of another layout, an unknown or duplicate tool, and too many texts.
    """
    examples: dict[str, tuple[str, ...]] = {}
    for row in rows:
        key, texts = row.get("id"), row.get("examples")
        if not _is_text(key) or not isinstance(texts, list) or not all(map(_is_text, texts)):
            raise InvalidInputError(f"a row of {source} holds no examples: {str(row)[:SHOWN]}", hint=EXAMPLES_LAYOUT)
        if key not in tools:
            raise InvalidInputError(
                f"{source} has examples for {key[:SHOWN]!r}, which is none of the {len(tools)} tools",
                hint="the ids are those of the tools; remove the row, or add the tool",
            )
        if key in examples:
            raise InvalidInputError(f"{source} has examples for {key!r} twice", hint="put them in one row")
        if len(texts) > MAX_EXAMPLES:
            raise InvalidInputError(
                f"{source} has {len(texts)} examples for {key!r}, and at most {MAX_EXAMPLES} count",
                hint="keep those that differ most",
            )
        examples[key] = tuple(texts)
    return examples


def drawn(examples: Mapping[str, tuple[str, ...]], share: float, seed: int) -> dict[str, tuple[str, ...]]:
    """Return the examples of a random share of their tools: the same ones for the same seed."""
    keys = sorted(examples)
    chosen = random.Random(seed).sample(keys, round(share * len(keys)))
    return {key: examples[key] for key in chosen}


def input_schema(row: JsonObject) -> JsonObject:
    """Return the input schema of a tool row; empty if it has none."""
    schema = row.get("input_schema")
    return schema if isinstance(schema, dict) else {}


def _alone(gold: object) -> object:
    """Return each tool of `gold` as a separate group; anything but a list is returned unchanged."""
    return [[key] for key in gold] if isinstance(gold, list) else gold


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list) and bool(value)


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value.strip())


def _object(line: str, place: str) -> JsonObject:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{place} is no JSON: {error}", hint="one JSON object on each line") from None
    if not isinstance(row, dict):
        raise InvalidInputError(f"{place} is no JSON object", hint="one JSON object on each line")
    return row


@dataclass(frozen=True, slots=True)
class QueryOutcome:
    """The hits of one search, its duration, and the tokens of its first five hits."""

    query: LabelledQuery
    scored: tuple[tuple[str, float], ...]
    """(key, score), best first; deep enough to hold every tool that reaches the lowest threshold."""
    milliseconds: float
    tokens: int


def figures(outcomes: Sequence[QueryOutcome], *, min_score: float) -> dict[str, float]:
    """Return all figures of `pml eval`: means over the queries, medians if the name says so.

    A group counts once, no matter which of its tools is found. `coverage@t` is the share of needed tools that score at
    least t, `empty_rate` the share of queries for which no tool reaches `min_score`.
    """
    ranked = [([key for key, _ in outcome.scored[:DEPTH]], outcome.query) for outcome in outcomes]
    lists = [_lists(outcome) for outcome in outcomes]
    milliseconds = [outcome.milliseconds for outcome in outcomes]
    return {
        "n": len(outcomes),
        **{f"recall@{depth}": _mean(recall(keys[:depth], query) for keys, query in ranked) for depth in RECALL_DEPTHS},
        f"ndcg@{DEPTH}": _mean(ndcg(keys, query) for keys, query in ranked),
        "mrr": _mean(reciprocal_rank(keys, query) for keys, query in ranked),
        f"hit@{DEPTH}": _mean(recall(keys, query) > 0 for keys, query in ranked),
        f"all_gold@{DEPTH}": _mean(recall(keys, query) == 1 for keys, query in ranked),
        **{
            f"coverage@{threshold}": _mean(
                recall(kept[at], outcome.query) for kept, outcome in zip(lists, outcomes, strict=True)
            )
            for at, threshold in enumerate(THRESHOLDS)
        },
        **{
            f"list_median@{threshold}": float(median([min(len(kept[at]), LIST_CAP) for kept in lists] or [0]))
            for at, threshold in enumerate(THRESHOLDS)
        },
        "empty_rate": _mean(not outcome.scored or outcome.scored[0][1] < min_score for outcome in outcomes),
        "tokens_5_hits": _mean(outcome.tokens for outcome in outcomes),
        "p50_ms": percentile(milliseconds, 50),
        "p99_ms": percentile(milliseconds, 99),
    }


def recall(keys: Sequence[str], query: LabelledQuery) -> float:
    """Return the share of groups with a tool among `keys`."""
    return sum(not group.isdisjoint(keys) for group in query.groups) / len(query.groups)


def ndcg(keys: Sequence[str], query: LabelledQuery) -> float:
    """Return the nDCG of keys, best first, over DEPTH ranks; the second tool of a satisfied group gains nothing."""
    waiting = list(query.groups)
    gain = 0.0
    for rank, key in enumerate(keys[:DEPTH]):
        # if it satisfies several groups, take the one with the fewest tools, so that other keys can satisfy the rest
        satisfied = min((group for group in waiting if key in group), key=len, default=None)
        if satisfied is not None:
            waiting.remove(satisfied)
            gain += _discount(rank)
    return gain / sum(map(_discount, range(min(len(query.groups), DEPTH))))


def reciprocal_rank(keys: Sequence[str], query: LabelledQuery) -> float:
    """Return one over the rank of the first right tool; 0 if there is none."""
    right = frozenset().union(*query.groups)
    return next((1 / rank for rank, key in enumerate(keys, 1) if key in right), 0.0)


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the interpolated percentile; 0 if there are no values."""
    if len(values) < 2:
        return values[0] if values else 0.0
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def _lists(outcome: QueryOutcome) -> list[list[str]]:
    return [[key for key, score in outcome.scored if score >= threshold] for threshold in THRESHOLDS]


def _discount(rank: int) -> float:
    return 1 / math.log2(rank + 2)


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return fmean(listed) if listed else 0.0


class HardTool(TypedDict):
    """A tool that queries missed or are likely to miss: how often it was missed, and the reasons."""

    name: str
    missed: int
    asked: int
    reasons: list[str]


def missed_none(outcome: QueryOutcome) -> bool:
    """Return True if an answer of the usual length contains every tool that the query needs."""
    return recall([key for key, _ in outcome.scored[:FOUND_WITHIN]], outcome.query) == 1


def own_words(name: str, description: str) -> str:
    """Return the first sentence of a tool's description, or its name: the query that `pml eval init` starts with."""
    return first_sentence(description).rstrip(".") or split_words(name) or name


def descriptions(documents: Sequence[ToolDocument], outcomes: Sequence[QueryOutcome]) -> int:
    """Return the number of queries copied from the description of a right tool, whose success proves little."""
    said = {each.key: own_words(each.name, each.description or each.title) for each in documents}
    queries = [outcome.query for outcome in outcomes]
    return sum(any(said.get(key) == query.text for group in query.groups for key in group) for query in queries)


def hard_tools(documents: Sequence[ToolDocument], outcomes: Sequence[QueryOutcome]) -> list[HardTool]:
    """Return the tools missed at least once or with a faulty text, the most missed first."""
    known = {document.key: document for document in documents}
    twins = _twins(documents)
    missed: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    ahead: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        found = [key for key, _ in outcome.scored[:FOUND_WITHIN]]
        for group in outcome.query.groups:
            asked.update(group)
            if group.isdisjoint(found):
                missed.update(group)
                for key in group:
                    ahead[key].update(found)
    reasons = {document.key: _faults(document, twins.get(document.key, ())) for document in documents}
    for key in missed:
        if key not in known:
            reasons[key] = ("no such tool in the catalog",)
        elif not twins.get(key):
            rivals = _listed([rival for rival, _ in ahead[key].most_common()])
            reasons[key] = (*reasons[key], f"found instead: {rivals}" if rivals else "nothing was found")
    hard: list[HardTool] = [
        {"name": key, "missed": missed[key], "asked": asked[key], "reasons": [*why]}
        for key, why in reasons.items()
        if why or missed[key]
    ]
    return sorted(hard, key=lambda tool: (-tool["missed"], tool["name"]))


def _faults(document: ToolDocument, twins: Sequence[str]) -> tuple[str, ...]:
    """Return the faults of a tool's text, independent of any query."""
    faults: list[str] = []
    words = len(document.description.split())
    if not words:
        faults.append("it has no description")
    elif words < FEW_WORDS and not UNSPACED.search(document.description):
        faults.append(f"its description has {words} word{'s' if words > 1 else ''}: say what it does to what, and when")
    if twins:
        same = "the same description" if words else "the same name and no description either"
        faults.append(f"duplicate: {_listed(twins)} {'has' if len(twins) == 1 else 'have'} {same}")
    return tuple(faults)


def _listed(keys: Sequence[str]) -> str:
    more = len(keys) - RIVALS_NAMED
    return ", ".join(keys[:RIVALS_NAMED]) + (f" and {more} more" if more > 0 else "")


def _twins(documents: Sequence[ToolDocument]) -> dict[str, list[str]]:
    """Return the keys of other tools with the same description, by key; without descriptions, names are compared."""
    alike: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for document in documents:
        described = " ".join(document.description.split()).casefold()
        alike[described, "" if described else squash(document.name)].append(document.key)
    return {key: [other for other in keys if other != key] for keys in alike.values() if len(keys) > 1 for key in keys}
