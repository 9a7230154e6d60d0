"""Clauses: the steps of a request of several, and one strength from what speaks for tools in each."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pml_gateway.index.text import UNSPACED
from pml_gateway.index.verbs import ALONE, VERBS, has_object, is_bare, is_question, leads

MIN_REQUEST_WORDS = 10
"""A shorter request is cut before verbs only: its other parts lose the context that says what is meant."""

MIN_CLAUSE_WORDS = 4
"""A shorter part stays with its neighbour, unless both are commands: `and London` is no step of its own."""

MIN_COMMAND_WORDS = 2
"""A shorter command is a verb alone, which is a step only if it can be nothing else: `stage it and commit`."""

MAX_CLAUSES = 8
"""Each one costs an embedding (1 to 2 ms); a request with more steps keeps the first ones."""

CLAUSE_SHARE = 0.35
"""Of the clauses in the strength; the rest is the whole request's. Requests told in prose want less (with 0 our own
held-out ones gain .007 nDCG@10, with 0.5 they lose .03), lists of commands more (with 0.5 seal_tools gains .012)."""

STEP_SHARE = 0.5
"""Of a clause beside the whole request where its best tool is chosen: alone it lacks the context, and with more of the
whole all clauses choose the same tool."""

MAX_BRIEF_WORDS, BRIEF_SHARE = 3, 0.65
"""A clause of so few words, such as `stage it`, tells less than the whole request, which is not to choose for it."""

SERVER_SHARE = 0.2
"""How much a tool loses by the distance of its server's best tools to the best of all, in requests of several steps."""

SERVER_EVIDENCE = 3
"""Tools that speak for a server: one good match is a coincidence, three are its subject."""

MAX_SERVER_LOSS = 0.5
CHARACTERS_PER_WORD = 3
"""Of scripts written without spaces."""

ONE_ACTION = frozenset({"copy/paste", "cut/paste", "drag/drop", "find/replace", "search/replace"})
"""Pairs of verbs that one tool does."""

_SENTENCE_END = re.compile(r"(?<=[.!?;:])\s+|(?<=[。！？；])|\n+")
_JOINT = re.compile(
    r"(,?\s+(?:and then|and also|and finally|after that|afterwards|then|also|finally|additionally|as well as|and|&|but"
    rf"|plus|before|while)\s+|,\s+(?=\w+\s+\w+\s+\w+|(?:{'|'.join(sorted(VERBS))})\b))",
    re.IGNORECASE,
)

Floats = npt.NDArray[np.float32]


def split_clauses(request: str) -> tuple[str, ...]:
    """The steps of a request, at most MAX_CLAUSES; none when it is a single one.

    In the request's words, except that verbs that share an object (`stage and commit changes`) and objects that share
    a verb (`remember a person and how they work`) both get what they share.
    """
    anywhere = _words(request) >= MIN_REQUEST_WORDS
    clauses: list[str] = []
    for sentence in _SENTENCE_END.split(request):
        parts = _steps(sentence.strip(), anywhere)
        if parts and clauses and not _goes_on(clauses[-1], parts[0], anywhere):
            clauses[-1] += " " + parts.pop(0)
        clauses += parts
    return tuple(clauses[:MAX_CLAUSES]) if len(clauses) > 1 else ()


def combine(whole: Floats, clauses: Floats) -> Floats:
    """Strengths (n,) from those for the whole request (n,) and for each clause (k, n).

    A tool counts by the clause it comes closest to being best in, so that the best tools of all clauses meet on one
    level and no clause that is easy to match crowds out the others.
    """
    best = clauses.max(axis=1, keepdims=True)
    nearest: Floats = (clauses - best).max(axis=0) + best.mean()
    combined: Floats = (1 - CLAUSE_SHARE) * whole + CLAUSE_SHARE * nearest
    return combined.astype(np.float32)


def interleaved(strengths: Floats, whole: Floats, clauses: Floats, texts: Sequence[str]) -> Floats:
    """The strengths (n,), dealt out anew: the best tool of each clause (k, n), one of these texts, comes before others.

    So no clause is crowded out by the many tools of another, and scores are made of the same values as before.
    """
    is_brief = np.asarray([_words(text) <= MAX_BRIEF_WORDS for text in texts])
    share: Floats = np.where(is_brief, BRIEF_SHARE, STEP_SHARE)[:, np.newaxis].astype(np.float32)
    chosen = np.zeros(len(strengths), dtype=np.bool_)
    chosen[_one_each((1 - share) * whole + share * clauses, clauses, is_brief)] = True
    dealt = np.empty_like(strengths)
    dealt[np.lexsort((-strengths, ~chosen))] = -np.sort(-strengths)
    return dealt


def _one_each(strengths: Floats, alone: Floats, is_brief: npt.NDArray[np.bool_]) -> list[int]:
    """Choose a tool for each clause from strengths (k, n) in the whole request, and from those by itself (k, n).

    What the whole request is about is often the best of brief clauses (k,) too, which tell little by themselves. They
    take their next if another clause asks for it more, unless it is their best by themselves as well.
    """
    left = strengths.copy()
    lacks = alone.max(axis=1) - alone[np.arange(len(alone)), strengths.argmax(axis=1)]
    chosen: list[int] = []
    for clause in np.argsort(lacks, kind="stable"):
        if is_brief[clause] and lacks[clause] > 0 and len(chosen) < strengths.shape[1]:
            left[clause, chosen] = -np.inf
        chosen.append(int(left[clause].argmax()))
    return chosen


def with_server_evidence(strengths: Floats, servers: npt.NDArray[np.int64]) -> Floats:
    """Strengths (n,) lowered where the server of a tool (n,) has little else that fits."""
    order = np.argsort(-strengths, kind="stable")
    rows: dict[int, list[float]] = {}
    for at in order:
        row = rows.setdefault(int(servers[at]), [])
        if len(row) < SERVER_EVIDENCE:
            row.append(float(strengths[at]))
    best = float(strengths[order[0]])
    means = {
        server: (sum(row) + row[-1] * (SERVER_EVIDENCE - len(row))) / SERVER_EVIDENCE for server, row in rows.items()
    }
    losses = np.asarray([max(means[int(server)] - best, -MAX_SERVER_LOSS) for server in servers], dtype=np.float32)
    return strengths + np.float32(SERVER_SHARE) * losses


def _steps(sentence: str, anywhere: bool) -> list[str]:
    """A sentence cut at those of its joints where a step begins."""
    first, *rest = _JOINT.split(sentence)
    steps = [first] if first else []
    for joint, part in zip(rest[::2], rest[1::2], strict=True):
        if not steps:
            steps.append(part)
        elif len(steps) == 1 and _share_an_object(steps[-1], part):
            steps[-1] += " " + part.split(None, 1)[1]
            steps.append(part)
        elif not _goes_on(steps[-1], part, anywhere):
            steps[-1] += joint + part
        elif is_question(part) and leads(steps[-1]):
            steps.append(f"{leads(steps[-1])} {part}")
        else:
            steps.append(part)
    return steps


def _share_an_object(before: str, part: str) -> bool:
    verb = leads(part)
    return bool(verb) and is_bare(before) and " " in part and f"{leads(before)}/{verb}" not in ONE_ACTION


def _goes_on(before: str, part: str, anywhere: bool) -> bool:
    """Return True if a part is a step after the one before: a command after a command, or a long one if cut anywhere.

    A verb alone counts if it says what is done to things; others are as often nouns: `write a summary and report`.
    """
    if is_bare(part) or is_bare(before):
        pair = leads(before), leads(part)
        return all(each in ALONE for each in pair) and "/".join(pair) not in ONE_ACTION
    words = min(_words(before), _words(part))
    if leads(part) and (leads(before) or is_question(before) or has_object(part)):
        return words >= MIN_COMMAND_WORDS
    if is_question(part) and leads(before):
        return _words(part) >= MIN_CLAUSE_WORDS
    return anywhere and words >= MIN_CLAUSE_WORDS


def _words(text: str) -> int:
    unspaced = sum(len(run) for run in UNSPACED.findall(text))
    return len(UNSPACED.sub(" ", text).split()) + unspaced // CHARACTERS_PER_WORD
