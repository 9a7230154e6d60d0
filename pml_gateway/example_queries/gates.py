"""Gates for examples, written or from use: only those stay that lead to their tool, judged by the model of search."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from pml_gateway.example_queries.library import sound_lists
from pml_gateway.index.cache import EmbeddingCache
from pml_gateway.index.embedder import Embedder, Embeddings, QueryEmbedder
from pml_gateway.index.evidence import Mask
from pml_gateway.index.text import MAX_EXAMPLES, ToolDocument, dense_text, query_tokens, split_words

MAX_RANK = 10
"""An example that does not find its tool among so many says something else."""

MAX_LEAD = 0.075
"""By how much another tool may be nearer to an example. Of examples that were given to a wrong tool, 96 of 100 drop out
(82 where that is a sibling, on the hardest of six catalogs), and at most 9 of 100 that are right."""

FORGIVEN = 0.5
"""Share of the lead that others have over a tool in the median of its examples: where two tools are much alike, all
that is asked for one is near the other, and still tells both from the rest."""

JURY = 150
"""Tools of other servers that an example is held against, always the same ones. Among thousands there are some for
every example that do the same elsewhere, and a good one would fail for it."""

MAX_MEAN_LEAD = 0.09
"""By how much a sibling may be nearer to all examples of a tool taken together, by what both say of themselves. A model
that confuses two tools writes well for the wrong one, and such examples speak for each other: of tools that got all of
a sibling's, nine of ten are beyond this, and less than one of a hundred others."""

TOGETHER = 4
"""Fewer examples are no evidence of a confusion."""

ROUNDS = 2
"""The second round judges without what the first dropped: a wrong example speaks for its tool with the next one."""

COPIED = 0.8
"""Share of words in common from which an example repeats what the tool says of itself."""

COPIED_WORDS = 4
"""Fewer are no copy: there are only so many words for reading a file."""

ROWS = 256
"""Examples compared with all others at once: 1 MB for each 1,000 of those."""

_SENTENCE_END = re.compile(r"[.!?;:]\s|\n")

Floats = npt.NDArray[np.float32]
Owners = npt.NDArray[np.int64]


MAX_LEARNED = 8
"""Of one tool; what was asked most often, and of that asked as often, what was asked last."""


class Gate(StrEnum):
    """Reason to drop an example, in words for its writer."""

    COPY = "it repeats the tool's description"
    DUPLICATE = "it says what another example of the tool says"
    SHARED = "it is written for two tools of the server, and tells them not apart"
    FAR = "it is far from what the tool does"
    RIVAL = "another tool answers it rather"
    COMPANY = "most of what is written for the tool in English fails"
    CONFUSED = "all that is written for the tool speaks of another one of the server"


@dataclass(frozen=True, slots=True)
class DroppedExample:
    """An example that did not pass, and the tool that stands before its own where there is one."""

    key: str
    text: str
    gate: Gate
    rival: str = ""


@dataclass(frozen=True, slots=True)
class SiftedExamples:
    """Examples that passed, by tool key in the order written, and those that did not."""

    kept: dict[str, tuple[str, ...]]
    dropped: tuple[DroppedExample, ...]


def sift(
    catalog: Sequence[ToolDocument],
    written: Mapping[str, Sequence[str]],
    embedder: Embedder,
    cache: EmbeddingCache | None = None,
    unread: Collection[str] = (),
) -> SiftedExamples:
    """Judge examples by whether each leads to its own tool.

    Args:
        catalog: all tools, with the examples that are kept of them already.
        written: new examples by the keys of their tools; what these had before counts no more.
        embedder: the model of search.
        cache: of embeddings, so that what was read once is not read again.
        unread: texts in languages that the model does not read. They lead to their tools by each other, and are as
            good as the tool's others are, where it has others; of the right ones, the model would drop half.
    """
    servers = {tool.key: tool.server for tool in catalog}
    parts: defaultdict[str, dict[str, Sequence[str]]] = defaultdict(dict)
    for key, texts in written.items():
        parts[servers[key]][key] = texts
    kept: dict[str, tuple[str, ...]] = dict.fromkeys(written, ())
    dropped: list[DroppedExample] = []
    asked = [replace(tool, examples=tuple(written.get(tool.key, tool.examples))) for tool in catalog]
    jurors = sorted(asked, key=lambda tool: hashlib.sha256(tool.key.encode("utf-8", "replace")).digest())
    for server, part in parts.items():
        own = [replace(tool, examples=()) if tool.key in part else tool for tool in catalog if tool.server == server]
        others = [tool for tool in jurors if tool.server != server][:JURY]
        sifted = _of_one_server((*own, *others), part, embedder, cache, unread)
        kept |= sifted.kept
        dropped += sifted.dropped
    return SiftedExamples(kept, tuple(dropped))


def _of_one_server(
    tools: Sequence[ToolDocument],
    written: Mapping[str, Sequence[str]],
    embedder: Embedder,
    cache: EmbeddingCache | None,
    unread: Collection[str],
) -> SiftedExamples:
    texts, dropped = _worded(tools, written)
    places = {tool.key: at for at, tool in enumerate(tools)}
    asked = [(key, text) for key, left in texts.items() for text in left if text not in unread]
    failed: dict[tuple[str, str], DroppedExample] = {}
    if asked:
        evidence = _Evidence.of(tools, [(places[key], text) for key, text in asked], embedder, cache)
        confused = evidence.confused()
        passes = np.asarray([at not in confused for at in evidence.judged_owners])
        for _ in range(ROUNDS):
            verdicts = evidence.verdicts(passes, confused)
            passes = np.asarray([verdict is None for verdict in verdicts])
        for (key, text), verdict in zip(asked, verdicts, strict=True):
            if verdict is not None:
                failed[key, text] = DroppedExample(key, text, verdict[0], tools[verdict[1]].key)
    judged, lost = Counter(key for key, _ in asked), Counter(key for key, _ in failed)
    for key, left in texts.items():
        if 2 * lost[key] > judged[key]:
            failed |= {(key, text): DroppedExample(key, text, Gate.COMPANY) for text in left if text in unread}
    kept = {key: tuple(text for text in texts[key] if (key, text) not in failed)[:MAX_EXAMPLES] for key in written}
    return SiftedExamples(kept, (*dropped, *failed.values()))


def _worded(
    tools: Sequence[ToolDocument], written: Mapping[str, Sequence[str]]
) -> tuple[dict[str, list[str]], list[DroppedExample]]:
    """Return the examples that pass a comparison of words, and those that do not."""
    known = {tool.key: tool for tool in tools}
    askers: defaultdict[tuple[str, frozenset[str]], set[str]] = defaultdict(set)
    for key, texts in written.items():
        for text in texts:
            askers[known[key].server, _words(text)].add(key)
    left: dict[str, list[str]] = {}
    dropped: list[DroppedExample] = []
    for key, texts in written.items():
        tool = known[key]
        said = _said(tool)
        mine: set[frozenset[str]] = set()
        left[key] = []
        for text in texts:
            words = _words(text)
            others = {
                other for other in askers[tool.server, words] if other != key and not _are_twins(tool, known[other])
            }
            if words in mine:
                dropped.append(DroppedExample(key, text, Gate.DUPLICATE))
            elif others:
                dropped.append(DroppedExample(key, text, Gate.SHARED, min(others)))
            elif len(words) >= COPIED_WORDS and any(_in_common(words, each) >= COPIED for each in said):
                dropped.append(DroppedExample(key, text, Gate.COPY))
            else:
                left[key].append(text)
            mine.add(words)
    return left, dropped


def _words(text: str) -> frozenset[str]:
    """Return the words of a text that count; the text itself where none does."""
    return frozenset(query_tokens(text)) or frozenset((" ".join(text.casefold().split()),))


def _said(tool: ToolDocument) -> list[frozenset[str]]:
    """Return the words of each sentence that the tool says of itself, and those of its name."""
    sentences = (split_words(tool.name), tool.title, *_SENTENCE_END.split(tool.description))
    return [frozenset(query_tokens(each)) for each in sentences if each.strip()]


def _in_common(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other)


def _are_twins(one: ToolDocument, other: ToolDocument) -> bool:
    """Return True if both have the same text, such as tools of one server configured for two accounts."""
    return (one.name, one.description) == (other.name, other.description)


@dataclass(frozen=True, slots=True)
class _Evidence:
    """The vectors of n tools and of m examples, of which the first k are judged."""

    tools: Embeddings
    examples: Embeddings
    """(m, dimension), by owner within the new ones and within those kept before."""
    owners: Owners
    """(m,) positions of tools."""
    judged: int
    twins: Owners
    """(n,) equal for tools that say the same."""
    siblings: int
    """The first so many tools are of the server that is written for."""

    @classmethod
    def of(
        cls,
        tools: Sequence[ToolDocument],
        asked: Sequence[tuple[int, str]],
        embedder: Embedder,
        cache: EmbeddingCache | None,
    ) -> _Evidence:
        said: dict[tuple[str, str], int] = {}
        twins = [said.setdefault((tool.name, tool.description), len(said)) for tool in tools]
        fresh = {twins[at] for at, _ in asked}
        # what twins of these tools were asked before is replaced as well
        before = [(at, text) for at, tool in enumerate(tools) if twins[at] not in fresh for text in tool.examples]
        everything = (*asked, *before)
        encode = embedder.encode if cache is None else lambda texts: cache.encode(embedder, texts)
        asking = embedder.encode_queries if isinstance(embedder, QueryEmbedder) else encode
        return cls(
            tools=encode([dense_text(tool) for tool in tools]),
            examples=asking([text for _, text in everything]),
            owners=np.asarray([at for at, _ in everything], dtype=np.int64),
            judged=len(asked),
            twins=np.asarray(twins, dtype=np.int64),
            siblings=sum(tool.server == tools[0].server for tool in tools),
        )

    @property
    def judged_owners(self) -> Owners:
        """(k,) positions of the tools of judged examples."""
        return self.owners[: self.judged]

    def confused(self) -> dict[int, int]:
        """Return the tools whose new examples, taken together, are nearer to another tool, and that tool."""
        found: dict[int, int] = {}
        for owner, count in zip(*np.unique(self.judged_owners, return_counts=True), strict=True):
            near = self.tools[: self.siblings] @ self.examples[: self.judged][self.judged_owners == owner].mean(axis=0)
            near[(self.twins[: self.siblings] == self.twins[owner]) & (np.arange(self.siblings) != owner)] = -np.inf
            rival = int(near.argmax())
            if count >= TOGETHER and near[rival] - near[owner] > MAX_MEAN_LEAD:
                found[int(owner)] = rival
        return found

    def verdicts(self, passes: Mask, confused: Mapping[int, int]) -> list[tuple[Gate, int] | None]:
        """Return the fault of each of the (k,) judged examples, and the position of the tool that is nearest instead.

        Args:
            passes: (k,) which of them speak for their tools.
            confused: the tools of which none passes.
        """
        leads, ranks, rivals = (np.concatenate(parts) for parts in zip(*self._compared(passes), strict=True))
        owners = self.judged_owners
        usual = {int(owner): max(0.0, float(np.median(leads[owners == owner]))) for owner in np.unique(owners)}
        forgiven = np.asarray([FORGIVEN * usual[int(owner)] for owner in owners])
        verdicts: list[tuple[Gate, int] | None] = []
        for owner, lead, rank, rival in zip(owners.tolist(), leads - forgiven, ranks, rivals, strict=True):
            if owner in confused:
                verdicts.append((Gate.CONFUSED, confused[owner]))
            elif rank > MAX_RANK:
                verdicts.append((Gate.FAR, int(rival)))
            else:
                verdicts.append((Gate.RIVAL, int(rival)) if lead > MAX_LEAD else None)
        return verdicts

    def _compared(self, passes: Mask) -> Iterator[tuple[Floats, Owners, Owners]]:
        """By how much the nearest other tool leads, how many tools are nearer, and which is nearest.

        What is asked of a tool counts as much as what it says of itself; of the examples, half their mean and half the
        best of them, the judged one left out. A tool without any is judged by what it says of itself alone.
        """
        speaks = np.concatenate((passes, np.ones(len(self.owners) - self.judged, dtype=np.bool_)))
        order = np.flatnonzero(speaks)
        order = order[np.argsort(self.owners[order], kind="stable")]
        having, starts = np.unique(self.owners[order], return_index=True)
        counts = np.bincount(self.owners[order], minlength=len(self.tools))
        columns = np.full(len(self.owners), -1, dtype=np.int64)
        columns[order] = np.arange(len(order))
        asked = self.examples[order]
        for start in range(0, self.judged, ROWS):
            judged = slice(start, min(start + ROWS, self.judged))
            vectors, owners = self.examples[judged], self.owners[judged]
            own = vectors @ self.tools.T
            likeness = vectors @ asked.T
            [itself] = np.nonzero(columns[judged] >= 0)
            others = np.tile(counts, (len(owners), 1))
            others[itself, owners[itself]] -= 1
            likeness[itself, columns[judged][itself]] = 0.0
            means = np.add.reduceat(likeness, starts, axis=1) / np.maximum(others[:, having], 1)
            likeness[itself, columns[judged][itself]] = -1.0
            best = np.maximum.reduceat(likeness, starts, axis=1)
            evidence = own.copy()
            evidence[:, having] = np.where(others[:, having] > 0, (means + best) / 2, own[:, having])
            yield self._against_others(own + evidence, owners)

    def _against_others(self, strengths: Floats, owners: Owners) -> tuple[Floats, Owners, Owners]:
        rows = np.arange(len(owners))
        leads = (strengths - strengths[rows, owners][:, None]) / 2
        leads[self.twins[None, :] == self.twins[owners][:, None]] = -np.inf
        rivals = leads.argmax(axis=1)
        return leads[rows, rivals], 1 + np.count_nonzero(leads > 0, axis=1), rivals


def summary(dropped: Sequence[DroppedExample]) -> Counter[Gate]:
    """Return the number of examples that each gate dropped."""
    return Counter(each.gate for each in dropped)


def learned(
    catalog: Sequence[ToolDocument],
    asked: Iterable[tuple[str, str]],
    embedder: Embedder,
    cache: EmbeddingCache | None = None,
) -> dict[str, tuple[str, ...]]:
    """Return the recorded searches that pass the gates, by tool key.

    Args:
        catalog: all tools, with the examples that they have but for those from use.
        asked: the key of a tool and a query that led to it, oldest first; keys of tools that are gone are passed over.
        embedder: the model of search.
        cache: of embeddings.
    """
    counts: dict[str, Counter[str]] = {}
    for key, query in asked:
        queries = counts.setdefault(key, Counter())
        queries[query] = queries.pop(query, 0) + 1  # what was asked last comes last
    known = {tool.key: tool for tool in catalog if tool.key in counts}
    often = [[query for query, _ in Counter(dict(reversed(counts[key].items()))).most_common()] for key in known]
    chosen = {key: texts[:MAX_LEARNED] for key, texts in zip(known, sound_lists(often), strict=True)}
    written = {key: (*known[key].examples, *texts) for key, texts in chosen.items()}
    kept = sift(catalog, written, embedder, cache).kept
    fresh = {key: set(texts) - set(known[key].examples) for key, texts in chosen.items()}
    passed = {key: tuple(text for text in kept[key] if text in texts) for key, texts in fresh.items()}
    return {key: texts for key, texts in passed.items() if texts}
