"""Links between tools: which results are worth something to which parameters, and which tools belong together.

A tool that yields a concept feeds those that need it.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from pml_gateway.index.concepts import NAMES, Ends, LinkedTool, Place, ends_of, first_stem, telling_word

MAX_LINKED = 20_000
"""Tools of a catalog beyond which no links are sought: so many take 7 s of one core, beside the requests."""

KEPT = 12
"""Related tools kept for each; the first ones may be hits themselves."""

FOREIGN_YIELDERS = 32
"""Tools of a catalog that may yield a concept for it to link tools of different servers: more of them say nothing."""

OWN_YIELDERS = 64
"""Tools of one server that are looked at for one concept."""

SMALL_SERVER = 20
"""Tools of a server that is about one matter, so that any two of them belong together more than they do with others."""

FEEDING = 16
"""Tools that feed one, the strongest, of which the related ones are chosen."""

MENTIONED = 0.9
IN_TURN = 0.5
"""A tool whose description names the other, and verbs of `IN_ORDER` on one thing."""

FOREIGN = 0.6
MIN_FOREIGN = 0.3
MIN_LINK = 0.1
"""What a link between servers is worth, and what it takes for a link: names meet by chance between servers."""

SAME_SERVER = 0.4
SAME_NOUN = 0.1
"""Added where linked tools have one server, and one noun."""

MIN_FEED = 0.3
"""What it takes to propose a field for a parameter, where nobody asked for a ranking."""

IN_ORDER = frozenset(
    {
        ("add", "commit"),
        ("build", "deploy"),
        ("checkout", "commit"),
        ("commit", "push"),
        ("create", "checkout"),
        ("create", "publish"),
        ("draft", "send"),
        ("edit", "commit"),
        ("fetch", "merge"),
        ("lock", "unlock"),
        ("navigate", "click"),
        ("navigate", "snapshot"),
        ("read", "write"),
        ("snapshot", "click"),
        ("start", "stop"),
        ("upload", "publish"),
    }
)
"""Verbs that follow each other on one thing, where no value passes between them that a schema could show."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Feed:
    """A field of one tool that a parameter of another may take, and how surely; without a path, some field of it."""

    path: str
    parameter: str
    strength: float


class Links:
    """The tools that belong together in one catalog."""

    def __init__(self, related: Mapping[str, tuple[str, ...]]) -> None:
        self._related = related

    @classmethod
    def build(cls, tools: Sequence[LinkedTool], pause: Callable[[], None] = lambda: None) -> Links:
        """Find what belongs together; `pause` is called now and then, and what it raises stops that."""
        if len(tools) > MAX_LINKED:
            return cls({})
        joined = _Joined([ends_of(tool) for tool in _unhurried(tools, pause)])
        scores: list[dict[int, float]] = [{} for _ in tools]
        for at in _unhurried(range(len(tools)), pause):
            for other, strength in joined.feeding(at).items():
                for one, two in ((at, other), (other, at)):
                    scores[one][two] = max(strength, scores[one].get(two, 0.0))
        chosen = (
            heapq.nsmallest(KEPT, ((-joined.belonging(at, two, strength), two) for two, strength in row.items()))
            for at, row in enumerate(scores)
        )
        return cls({tool.key: tuple(tools[at].key for _, at in row) for tool, row in zip(tools, chosen, strict=True)})

    def related(self, key: str) -> tuple[str, ...]:
        """The tools that belong with one, the nearest first."""
        return self._related.get(key, ())


def feeds(producer: Ends, consumer: Ends) -> list[Feed]:
    """For each parameter of the consumer the field of the producer that fits it best, the surest first."""
    found = []
    for need in consumer.needs:
        fits = [(_fit(field, need), field) for field in producer.yields]
        strength, field = max(fits, key=lambda fit: fit[0])
        if strength >= MIN_FEED:
            found.append(Feed(field.path, need.path, strength))
    return sorted(found, key=lambda feed: -feed.strength)


def _fit(field: Place, need: Place) -> float:
    shared = field.concepts.keys() & need.concepts.keys()
    best = max((field.concepts[concept] * need.concepts[concept] for concept in shared), default=0.0)
    return best * _typed(field.kind, need.kind)


def _unhurried(items: Sequence[Item], pause: Callable[[], None]) -> Iterator[Item]:
    for at, item in enumerate(items):
        if at % 256 == 0:
            pause()
        yield item


class _Joined:
    """The tools of a catalog by what they yield."""

    def __init__(self, tools: Sequence[Ends]) -> None:
        self._tools = tools
        self._named = {(tool.server, tool.name): at for at, tool in enumerate(tools) if NAMES.fullmatch(tool.name)}
        self._idle = _idle_words(tools)
        own: defaultdict[tuple[str, str], dict[int, tuple[float, str]]] = defaultdict(dict)
        counts: Counter[str] = Counter()
        for at, tool in enumerate(tools):
            for concept, yielded in self._yielded(tool).items():
                own[tool.server, concept][at] = yielded
                counts[concept] += 1
        self._own = own
        self._everywhere: defaultdict[str, dict[int, tuple[float, str]]] = defaultdict(dict)
        for (_, concept), holders in own.items():
            if counts[concept] <= FOREIGN_YIELDERS:
                self._everywhere[concept] |= holders
        self._nouns: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        self._servers: defaultdict[str, list[int]] = defaultdict(list)
        for at, tool in enumerate(tools):
            self._servers[tool.server].append(at)
            self._nouns[tool.server, self._head(tool)].append(at)

    def feeding(self, consumer: int) -> dict[int, float]:
        """The tools that feed one or come before it, the strongest, with how strongly; 0 for mere neighbours."""
        tool = self._tools[consumer]
        found: dict[int, float] = {}
        for need in tool.needs:
            for concept, sure in need.concepts.items():
                for at, (yielded, kind) in islice(self._holders(tool, concept), OWN_YIELDERS):
                    is_foreign = self._tools[at].server != tool.server
                    strength = yielded * sure * _typed(kind, need.kind) * (FOREIGN if is_foreign else 1.0)
                    if strength >= (MIN_FOREIGN if is_foreign else MIN_LINK):
                        found[at] = max(strength, found.get(at, 0.0))
        named = (self._named.get((tool.server, word)) for word in tool.words)
        found |= {at: MENTIONED for at in named if at is not None}
        head = self._head(tool)
        for at in self._nouns[tool.server, head][:OWN_YIELDERS]:
            if (self._tools[at].verb, tool.verb) in IN_ORDER:
                found[at] = max(IN_TURN, found.get(at, 0.0))
            elif head:
                found.setdefault(at, 0.0)
        siblings = self._servers[tool.server]
        found = dict.fromkeys(siblings if len(siblings) <= SMALL_SERVER else (), 0.0) | found
        found.pop(consumer, None)
        return dict(heapq.nlargest(FEEDING, found.items(), key=lambda item: (item[1], -item[0])))

    def _holders(self, tool: Ends, concept: str) -> Iterable[tuple[int, tuple[float, str]]]:
        if concept in self._idle[tool.server]:
            return ()
        return (self._everywhere.get(concept) or self._own.get((tool.server, concept), {})).items()

    def belonging(self, one: int, two: int, strength: float) -> float:
        """How much two linked tools belong together."""
        first, second = self._tools[one], self._tools[two]
        if first.server != second.server:
            return strength
        head = self._head(first)
        return strength + SAME_SERVER + (SAME_NOUN if head and head == self._head(second) else 0.0)

    def _yielded(self, tool: Ends) -> dict[str, tuple[float, str]]:
        best: dict[str, tuple[float, str]] = {}
        for field in tool.yields:
            for concept, sure in field.concepts.items():
                if concept not in self._idle[tool.server] and sure > best.get(concept, (0.0, ""))[0]:
                    best[concept] = (sure, field.kind)
        return best

    def _head(self, tool: Ends) -> str:
        return telling_word(tool.noun, self._idle[tool.server])


def _idle_words(tools: Sequence[Ends]) -> dict[str, frozenset[str]]:
    """For each server the words that most of its tools begin with, such as `browser`: they tell none from another."""
    firsts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for tool in tools:
        firsts[tool.server].update(first_stem(tool.name))
    return {
        server: frozenset(word for word, count in counts.items() if count >= max(3, counts.total() / 2))
        for server, counts in firsts.items()
    }


def _typed(field: str, parameter: str) -> float:
    """What is left of a link between values of these types."""
    if not field or not parameter or field == parameter or {field, parameter} == {"integer", "number"}:
        return 1.0
    if parameter == "array":
        return 0.95
    return 0.5 if "object" in (field, parameter) else 0.6 if field == "array" else 0.8
