"""A plan suggested for an intent: the tools that fit, linked into steps to fill in; nothing of it runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio.to_thread

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.errors import InvalidInputError
from pml_gateway.exposure.schema_text import effect, signature
from pml_gateway.gateway.calling import CallContext, search_hint
from pml_gateway.gateway.request import MAX_INTENT_LENGTH
from pml_gateway.gateway.state import GatewayState, linked_tool
from pml_gateway.index.clauses import says_to_do, split_steps
from pml_gateway.index.concepts import SCALARS, Ends, Place, ends_of, stems
from pml_gateway.index.links import Feed, Links, feeds
from pml_gateway.index.verbs import Effect
from pml_gateway.meta.literals import fitting
from pml_gateway.policy.view import View
from pml_gateway.results.learning import Output
from pml_gateway.text import first_sentence
from pml_gateway.types import JsonObject

MAX_TOOLS = 8
"""Ranked tools in a plan: twice what most requests need, at 60 tokens each."""

MAX_STEPS = 12
MAX_ALTERNATIVES = 2
PART_HITS = 4
"""Tools looked at for each part of the intent."""

WHOLE_SHARE = 0.3
"""Of the score for the whole intent in the choice of a part's tool: the rest of a request tells the system meant."""

SOUGHT = 40
"""Tools that a step's missing arguments may come from: the best for the whole intent, and those that belong with it."""

SURE = 0.6
"""Strength of a link for which a step is added or moved, or an argument given that need not be."""

FIT_SHARE = 0.5
"""Of the score for the whole intent, beside the strength of the link, in the choice of a step that is added."""

NEEDS_ITSELF = 0.3
"""What a step that is added loses where it needs an identifier of something itself."""

THINGS = frozenset({"id", "email"})
"""Last words of parameters that tools without `required` cannot do without: the rest may be filters."""

VALUES = "amount body content data expression input message num1 num price query sentence string text value word"
"""Last words of parameters that are for just some value."""

_VALUES = frozenset(VALUES.split())
_FILTERING = frozenset({"search", "list", "find", "query", "lookup", "filter", "count"})
_EACH = re.compile(r"\b(?:each|every|all|them|those|these)\b", re.IGNORECASE)
_BEFORE = re.compile(r"\b(?:it|its|this|that|them|those|these|result|results|value|output)\b", re.IGNORECASE)

OutputOf = Callable[[CatalogTool], Output | None]
OutcomeOf = Callable[[CatalogTool], str]


async def suggested_plan(context: CallContext, intent: Any) -> JsonObject:
    """A plan for an intent; nothing of it runs.

    Raises:
        InvalidInputError: the intent is no text.
    """
    if not isinstance(intent, str) or not intent.strip():
        raise InvalidInputError("intent: what the workflow should do, in words, is missing")
    wanted = intent.strip()[:MAX_INTENT_LENGTH]
    await context.gateway.first_lists(context.view)
    state = await context.gateway.searchable()
    view = state.view(context.scope.client)
    output_of = partial(context.gateway.shapes.output_of, context.scope.client)
    links = context.gateway.linker.links(view)
    plan = await anyio.to_thread.run_sync(planned, state, view, wanted, output_of, context.outcome_of, links)
    next_step = "fill in what is missing and send the steps; dry_run checks them"
    return {
        "plan": {"intent": wanted, **plan},
        "executed": False,
        "next": next_step if plan["steps"] else f"no tool fits; {search_hint(view, state)}",
    }


def planned(
    state: GatewayState,
    view: View,
    wanted: str,
    output_of: OutputOf,
    outcome_of: OutcomeOf,
    links: Links | None = None,
) -> JsonObject:
    """The plan for an intent. Blocks for some milliseconds a part: call it in a thread.

    `steps` are such as execute_workflow takes; `alternatives` other tools for them; `from_intent` the arguments that
    the intent names; `missing` what neither it nor an earlier step gives.
    """
    return _Planner(state, view, output_of, outcome_of, links).plan(wanted)


@dataclass(slots=True, eq=False)
class _Step:
    """A step that is being planned."""

    tool: CatalogTool
    ends: Ends
    part: str
    alternatives: tuple[str, ...] = ()
    said: JsonObject = field(default_factory=dict)
    """Arguments that the part names."""

    @property
    def fields(self) -> set[str]:
        """Words of the names of its fields."""
        return {word for field in self.ends.yields for word in stems(field.path.rpartition(".")[2])}

    def lacks(self) -> dict[str, Place]:
        """The parameters that it cannot do without and that its part does not name."""
        return {need.path: need for need in self.ends.needs if need.path not in self.said and self._asks_for(need)}

    def _asks_for(self, need: Place) -> bool:
        if self.tool.definition["inputSchema"].get("required"):
            return need.is_required
        return self.ends.verb not in _FILTERING and stems(need.path)[-1] in THINGS


class _Planner:
    """Plans for one client."""

    def __init__(
        self, state: GatewayState, view: View, output_of: OutputOf, outcome_of: OutcomeOf, links: Links | None
    ) -> None:
        self._state, self._view, self._links = state, view, links
        self._output_of, self._outcome_of = output_of, outcome_of
        self._minimum = state.settings.search.min_score
        self._known: dict[str, Ends] = {}

    def plan(self, wanted: str) -> JsonObject:
        """The plan for an intent."""
        ranked = self._search(wanted, SOUGHT)
        scores = {tool.qualified_name: score for tool, score in ranked}
        steps, missing = self._chosen(split_steps(wanted), scores)
        steps = _ordered(self._completed(steps, scores))[:MAX_STEPS]
        _share_values(steps)
        written = [_written(at, step, steps[:at]) for at, step in enumerate(steps)]
        tools = dict.fromkeys([*(step.tool for step in steps), *(tool for tool, _ in ranked[:MAX_TOOLS])])
        plan: JsonObject = {
            "tools": [self._described(tool, scores) for tool in list(tools)[:MAX_TOOLS]],
            "steps": [each.step for each in written],
            "missing": [*missing, *(line for each in written for line in each.missing)],
        }
        more = {
            "alternatives": {
                f"step{at}": list(step.alternatives) for at, step in enumerate(steps) if step.alternatives
            },
            "from_intent": [f"step{at}.arguments.{name}" for at, step in enumerate(steps) for name in step.said],
        }
        return plan | {key: value for key, value in more.items() if value}

    def _search(self, text: str, count: int) -> list[tuple[CatalogTool, float]]:
        return [hit for hit in self._state.search(self._view, text, count).tools if hit[1] >= self._minimum]

    def _ends_of(self, tool: CatalogTool) -> Ends:
        if tool.qualified_name not in self._known:
            output = self._output_of(tool)
            self._known[tool.qualified_name] = ends_of(linked_tool(tool, None if output is None else output.schema))
        return self._known[tool.qualified_name]

    def _chosen(self, parts: Sequence[str], scores: dict[str, float]) -> tuple[list[_Step], list[str]]:
        """A step for each part that a tool fits, and the parts in which something is to be done and none does."""
        steps: list[_Step] = []
        missing: list[str] = []
        for part in parts:
            hits = self._search(part, PART_HITS)
            if not hits:
                missing += [f"no tool for {part[:120]!r}"] if says_to_do(part) else []
                continue
            hits.sort(key=lambda hit: -(hit[1] + WHOLE_SHARE * scores.get(hit[0].qualified_name, 0.0)))
            best, *others = [tool for tool, _ in hits]
            if steps and steps[-1].tool is best:
                steps[-1].part += "; " + part
                continue
            names = tuple(tool.qualified_name for tool in others[:MAX_ALTERNATIVES])
            steps.append(_Step(best, self._ends_of(best), part, names))
        return steps, missing

    def _completed(self, steps: Sequence[_Step], scores: dict[str, float]) -> list[_Step]:
        """The steps, each after one that gives what neither its part nor another step does."""
        completed, pending = list(steps), list(steps)
        while pending and len(completed) < MAX_STEPS:
            step = pending.pop(0)
            step.said = fitting(step.part, step.tool.definition["inputSchema"])
            lacking = set(step.lacks())
            for other in completed:
                lacking -= {feed.parameter for feed in _sure(other, step)} if other is not step else set()
            source = self._source(step, lacking, [each.tool for each in completed], scores) if lacking else None
            if source is not None:
                added = _Step(source, self._ends_of(source), step.part)
                completed.insert(completed.index(step), added)
                pending.append(added)
        return completed

    def _source(
        self, step: _Step, lacking: Collection[str], used: Sequence[CatalogTool], scores: dict[str, float]
    ) -> CatalogTool | None:
        """The tool that best gives what a step lacks; none that changes something, which nobody has asked for."""
        best, most = None, 0.0
        for tool in self._sources(step, scores):
            source = _Step(tool, self._ends_of(tool), "")
            links = [feed.strength for feed in _feeds(source, step) if feed.parameter in lacking]
            changes = effect(tool.definition) in ("write", "destructive")
            if tool in used or changes or max(links, default=0.0) < SURE:
                continue
            fit = max(links) + FIT_SHARE * scores.get(tool.qualified_name, 0.0)
            fit -= NEEDS_ITSELF if source.lacks() else 0.0
            if fit > most:
                best, most = tool, fit
        return best

    def _sources(self, step: _Step, scores: dict[str, float]) -> Iterator[CatalogTool]:
        belonging = () if self._links is None else self._links.related(step.tool.qualified_name)
        return filter(None, map(self._state.catalog.by_name, dict.fromkeys([*scores, *belonging])))

    def _described(self, tool: CatalogTool, scores: dict[str, float]) -> JsonObject:
        described: JsonObject = {
            "name": tool.qualified_name,
            "signature": signature(tool.qualified_name, tool.definition["inputSchema"]) + self._outcome_of(tool),
            "description": first_sentence(tool.description or tool.title),
        }
        if tool.qualified_name in scores:
            described["score"] = round(scores[tool.qualified_name], 3)
        return described


def _share_values(steps: Sequence[_Step]) -> None:
    """Let a value count for all steps at a server that cannot do without it, as a repository that is named once."""
    for step in steps:
        for name in step.lacks():
            same = [
                other.said[name]
                for other in steps
                if other.tool.upstream_id == step.tool.upstream_id and name in other.said
            ]
            is_fed = any(feed.parameter == name for other in steps if other is not step for feed in _sure(other, step))
            if same and all(value == same[0] for value in same) and not is_fed and stems(name)[-1] not in _VALUES:
                step.said[name] = same[0]


def _sure(producer: _Step, consumer: _Step) -> list[Feed]:
    """The links for which a step is added or moved: to what the consumer cannot do without."""
    lacking = consumer.lacks()
    return [feed for feed in _feeds(producer, consumer) if feed.strength >= SURE and feed.parameter in lacking]


def _feeds(producer: _Step, consumer: _Step) -> list[Feed]:
    """The links between two steps; what a new thing is to hold is not taken from another of its kind, nor the thing."""
    noun = set(consumer.ends.noun) if consumer.ends.effect is Effect.CREATES else set()
    makes_alike = noun & set(producer.ends.noun)
    found = []
    for feed in feeds(producer.ends, consumer.ends):
        word = stems(feed.parameter)[-1]
        if word in THINGS or not (makes_alike or word in noun):
            found.append(feed)
    return found


def _ordered(steps: Sequence[_Step]) -> list[_Step]:
    """Steps behind those that surely feed them, otherwise in the order of the intent."""
    ordered: list[_Step] = []

    def place(step: _Step, above: tuple[_Step, ...]) -> None:
        if step in ordered or step in above:
            return
        for other in steps:
            if other is not step and _sure(other, step) and not _sure(step, other):
                place(other, (*above, step))
        ordered.append(step)

    for step in steps:
        place(step, ())
    return ordered


@dataclass(frozen=True, slots=True)
class _Written:
    """A step as it is answered, and what is missing in it."""

    step: JsonObject
    missing: list[str]


def _written(at: int, step: _Step, before: Sequence[_Step]) -> _Written:
    """A step with the arguments that its part names or earlier steps feed, and placeholders for what else it needs."""
    schema = step.tool.definition["inputSchema"]
    needs = {need.path: need for need in step.ends.needs if "." not in need.path}
    required = [str(name) for name in schema.get("required") or ()]
    written: JsonObject = {"id": f"step{at}", "tool": step.tool.qualified_name}
    arguments: JsonObject = {name: _literal(value) for name, value in step.said.items()}
    missing: list[str] = []
    feeding = _feeding(step, before)
    for name in dict.fromkeys([*required, *feeding]):
        if name in arguments:
            continue
        number, feed = feeding.get(name, (0, None))
        kind = needs[name].kind if name in needs else ""
        if feed is not None and feed.path:
            source = _Source(f"$step{number}", feed.path, kind)
            each = source.per_item() if "for_each" not in written and _EACH.search(step.part) else None
            if each is not None:
                written["for_each"], arguments[name] = each
            else:
                arguments[name] = source.reference()
            continue
        wanted = kind or "value"
        arguments[name] = f"<{wanted}>" if feed is None else f"<{wanted} out of $step{number}>"
        is_known = feed is not None and len(before[number].ends.yields) > 1
        said = "" if feed is None else f": perhaps in the result of step{number}"
        said += ", whose fields are not known yet" if feed is not None and not is_known else ""
        missing.append(f"step{at}.arguments.{name}{said}")
    return _Written({**written, "arguments": arguments}, missing)


def _literal(value: Any) -> Any:
    """A value as it stands in a step, where a dollar sign begins a reference."""
    if isinstance(value, list):
        return [_literal(each) for each in value]
    return value.replace("$", "$$") if isinstance(value, str) else value


def _feeding(step: _Step, before: Sequence[_Step]) -> dict[str, tuple[int, Feed]]:
    """By parameter the earlier step that feeds it, and how; known fields come before promises, then what is surer."""
    lacking = step.lacks()
    best: dict[str, tuple[int, Feed]] = {}
    for number, producer in enumerate(before):
        for feed in _feeds(producer, step):
            if "." in feed.parameter or (feed.strength < SURE and feed.parameter not in lacking):
                continue
            other = best.get(feed.parameter)
            if other is None or (bool(feed.path), feed.strength) >= (bool(other[1].path), other[1].strength):
                best[feed.parameter] = (number, feed)
    return best | _meant(step, before, best)


def _meant(step: _Step, before: Sequence[_Step], fed: Mapping[str, tuple[int, Feed]]) -> dict[str, tuple[int, Feed]]:
    """The parameter for just some value takes the earlier result that the part speaks of: `the area`, or just `it`.

    A result that already feeds another parameter was spoken of for that one.
    """
    properties = step.tool.definition["inputSchema"].get("properties") or {}
    required = step.tool.definition["inputSchema"].get("required") or properties
    left = [name for name in properties if name in required and name not in {*step.said, *fed}]
    plain = [name for name in left if _VALUES & set(stems(name)[-1:])]
    takes = left[0] if len(left) == 1 else next(iter(plain), None)
    if takes is None or not before:
        return {}
    words = set(stems(step.part)) - set(step.ends.noun)
    named = [number for number, each in enumerate(before) if words & {*each.ends.noun, *each.fields}]
    numbers = named or ([len(before) - 1] if _BEFORE.search(step.part) else [])
    if not numbers or numbers[-1] in (number for number, _ in fed.values()):
        return {}
    *fields, promise = before[numbers[-1]].ends.yields
    spoken = [field for field in fields if words & set(stems(field.path.rpartition(".")[2]))]
    return {takes: (numbers[-1], Feed((spoken or [promise])[0].path, takes, 0.0))}


@dataclass(frozen=True, slots=True)
class _Source:
    """A field of an earlier step's result for a parameter of some type."""

    step: str
    path: str
    kind: str

    def reference(self) -> str:
        """A reference to the field, to the first one of many where the parameter takes one."""
        path = self.path.removeprefix("@")
        return self.step + (path if self.kind == "array" else path.replace("[*]", "[0]"))

    def per_item(self) -> tuple[str, str] | None:
        """The list to go through and the field of its items, where the parameter takes one of many."""
        items, sign, rest = self.path.removeprefix("@").rpartition("[*]")
        if not sign or "[*]" in items or self.kind not in SCALARS:
            return None
        return self.step + items, "$item" + rest
