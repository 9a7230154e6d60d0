"""Training pairs: turns labelled intents and bare tool listings into texts that belong together."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from labelled import WRITTEN_INTENTS, is_held_out, listed_tools, read_intents, read_tools
from paraphrase import imperative, long_task, search_string, sentences, server_short, task

from pml_gateway.index.evaluation import LabelledQuery
from pml_gateway.index.lexical import LexicalIndex, count_words
from pml_gateway.index.text import ToolDocument, dense_text, lexical_tokens, query_tokens

PAIRS_PER_TOOL = 15
"""MetaTool has up to 700 intents for one of its 115 tools; the model would learn their names by heart."""

PAIRS_PER_INTENT = 3
PAIRS_PER_SOURCE = {"apibench": 400}
"""APIBench names one of many models that would do equally well: mostly noise, but the only source of its kind."""

DEFAULT_PAIRS_PER_SOURCE = 1_500
SYNTHETIC_SHARE = 0.15
"""Share of the search strings and tasks that are used: all listed tools have written intents, which say more."""

LONG_TASK_SHARE = 0.12
NAMELESS_SHARE = 0.35
"""Share of synthetic pairs whose tool loses the sentence that became the query: only its name is left to match."""

DUPLICATE_COSINE = 0.88
"""Tools this close do the same thing; one is no counter-example for an intent that the other serves."""

RIVAL_MARGIN = 0.04
"""A rival that the untuned model puts this far above the right tool is more likely unlabelled than wrong."""

RIVALS_CONSIDERED = 12
QUERY_BLOCK = 512

Floats = npt.NDArray[np.float32]
Encode = Callable[[Sequence[str]], Floats]


@dataclass(frozen=True, slots=True)
class Pair:
    """A query, one tool that serves it, all tools known to, and a hard counter-example; tools are positions."""

    query: str
    tool: int
    right: frozenset[int]
    text: str
    rival: int = -1


@dataclass(frozen=True, slots=True)
class Corpus:
    """The tools pairs speak of, with their embedded texts and vectors of the untuned model."""

    tools: list[ToolDocument]
    texts: list[str]
    vectors: Floats
    pairs: list[Pair]


def read_corpus(train: Path, encode: Encode, seed: int, labelled_only: bool = False) -> Corpus:
    """All training pairs with their rivals; `encode` is the untuned model's."""
    source = random.Random(seed)
    intents = _trainable(read_intents(train / "pairs.train.jsonl"))
    asked_for = {key for intent in intents for group in intent.groups for key in group}
    # a tool without a pair of its own would only ever be pushed away
    labelled = [tool for tool in read_tools(train / "tools.jsonl") if tool.key in asked_for]
    listed, position_of = ([], {}) if labelled_only else listed_tools(train)
    tools = [*labelled, *listed]
    at = {tool.key: position for position, tool in enumerate(tools)}
    texts = [dense_text(tool) for tool in tools]
    pairs = labelled_pairs(intents, at, texts, source)
    if listed:
        same = {key: len(labelled) + position for key, position in position_of.items()}
        pairs += written_pairs(_trainable(read_intents(WRITTEN_INTENTS)), same, tools, source)
    pairs += synthetic_pairs(listed, len(labelled), source)
    vectors = encode(texts)
    return Corpus(tools, texts, vectors, with_rivals(pairs, tools, vectors, encode, source))


def labelled_pairs(
    intents: list[LabelledQuery], at: dict[str, int], texts: list[str], source: random.Random
) -> list[Pair]:
    """At most PAIRS_PER_TOOL pairs of each tool and PAIRS_PER_INTENT of each intent."""
    used: Counter[int] = Counter()
    of_origin: Counter[str] = Counter()
    pairs: list[Pair] = []
    for intent in source.sample(intents, len(intents)):
        right = frozenset(at[key] for group in intent.groups for key in group)
        origin = min(intent.groups[0]).partition("/")[0]
        if of_origin[origin] >= PAIRS_PER_SOURCE.get(origin, DEFAULT_PAIRS_PER_SOURCE):
            continue
        for tool in source.sample(sorted(right), min(len(right), PAIRS_PER_INTENT)):
            if used[tool] < PAIRS_PER_TOOL:
                used[tool] += 1
                of_origin[origin] += 1
                pairs.append(Pair(intent.text, tool, right, texts[tool]))
    return pairs


def written_pairs(
    intents: list[LabelledQuery], at: dict[str, int], tools: list[ToolDocument], source: random.Random
) -> list[Pair]:
    """A pair for each tool that an intent needs, or for one of a group of equals."""
    pairs: list[Pair] = []
    for intent in intents:
        right = frozenset(at[key] for group in intent.groups for key in group)
        for tool in sorted(right):
            document = replace(tools[tool], server=_server_as_written(tools[tool].server, source))
            pairs.append(Pair(intent.text, tool, right, dense_text(document)))
    return pairs


def synthetic_pairs(tools: list[ToolDocument], offset: int, source: random.Random) -> list[Pair]:
    """A search string and a task for each listed tool, and requests of several steps."""
    described = {i: sentences(tool.description) for i, tool in enumerate(tools)}
    phrases = {i: imperative(found[0]) for i, found in described.items() if found and len(found[0]) > 8}
    siblings: defaultdict[str, list[int]] = defaultdict(list)
    for i in phrases:
        siblings[tools[i].server].append(i)
    everyone = list(phrases)
    pairs: list[Pair] = []
    for i, phrase in phrases.items():
        tool = replace(tools[i], server=_server_as_written(tools[i].server, source))
        bare = replace(tool, description=". ".join(described[i][1:]))
        one = frozenset({offset + i})
        for write in (search_string, task):
            if source.random() > SYNTHETIC_SHARE:
                continue
            # the search string may consist of the name, so the sentence must stay for it
            document = bare if write is task and source.random() < NAMELESS_SHARE else tool
            pairs.append(Pair(write(tool, phrase, source), offset + i, one, dense_text(document)))
        if source.random() < LONG_TASK_SHARE:
            pool = siblings[tools[i].server] if source.random() < 0.5 else everyone
            steps = list(dict.fromkeys([i, *source.sample(pool, min(len(pool), source.randint(1, 3)))]))
            source.shuffle(steps)
            right = frozenset(offset + step for step in steps)
            text = long_task([phrases[step] for step in steps], source)
            pairs.append(Pair(text, offset + i, right, dense_text(tool)))
    return pairs


def with_rivals(
    pairs: list[Pair], tools: list[ToolDocument], vectors: Floats, encode: Encode, source: random.Random
) -> list[Pair]:
    """Each pair with a wrong tool that looks right: of the same server if it has one, by meaning or by words."""
    words = LexicalIndex(count_words(map(lexical_tokens, tools)))
    servers = np.asarray([tool.server or tool.key.partition("/")[0] for tool in tools])
    names = np.asarray([tool.name.casefold() for tool in tools])
    found: list[Pair] = []
    for start in range(0, len(pairs), QUERY_BLOCK):
        block = pairs[start : start + QUERY_BLOCK]
        cosines = encode([pair.query for pair in block]) @ vectors.T
        for pair, row in zip(block, cosines, strict=True):
            excluded = (vectors @ vectors[pair.tool] > DUPLICATE_COSINE) | (names == names[pair.tool])
            excluded |= row > row[pair.tool] + RIVAL_MARGIN
            excluded[list(pair.right)] = True
            strength = row + 0.02 * np.log1p(words.scores(query_tokens(pair.query)))
            strength[excluded] = -np.inf
            if source.random() < 0.5:
                strength[servers != servers[pair.tool]] -= 1
            hardest = np.argpartition(-strength, RIVALS_CONSIDERED)[:RIVALS_CONSIDERED]
            usable = [int(i) for i in hardest if np.isfinite(strength[i])]
            found.append(replace(pair, rival=source.choice(usable)) if usable else pair)
    return found


def _trainable(intents: list[LabelledQuery]) -> list[LabelledQuery]:
    return [intent for intent in intents if not any(is_held_out(key) for group in intent.groups for key in group)]


def _server_as_written(server: str, source: random.Random) -> str:
    """A user names a server as they like: as published, or in short."""
    return server_short(server) if source.random() < 0.6 else server
