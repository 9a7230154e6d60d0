"""Clauses: splits a request into its steps, and combines the evidence of all steps into one strength per tool."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pml_gateway.index.evidence import Floats
from pml_gateway.index.text import UNSPACED
from pml_gateway.index.verbs import ALONE, VERBS, has_object, is_bare, is_question, leads

MIN_REQUEST_WORDS = 10
"""Words below which a request is split only before verbs: other parts would lose the context that gives their
meaning."""

MIN_CLAUSE_WORDS = 4
"""Words below which a part stays with its neighbour, unless both are commands: `and London` is not a separate step."""

MIN_COMMAND_WORDS = 2
"""Words below which a command is a verb alone, a step only if it cannot be a noun: `stage it and commit`."""

MAX_CLAUSES = 8
"""Maximum number of clauses, as each costs an embedding (1 to 2 ms); of more steps, the first ones are kept."""

CLAUSE_SHARE = 0.35
"""Share of the clauses in the strength; the rest is the whole request's. Requests in prose need less (with 0 our own
held-out ones gain .007 nDCG@10, with 0.5 they lose .03), lists of commands more (with 0.5 seal_tools gains .012)."""

STEP_SHARE = 0.5
"""Share of a clause, against the whole request, in the choice of its best tool: alone it lacks the context, and with
more of the whole all clauses choose the same tool."""

MAX_BRIEF_WORDS, BRIEF_SHARE = 3, 0.65
"""Maximum words of a brief clause, such as `stage it`, and its share instead of STEP_SHARE: it is higher, as the whole
request has more evidence and would choose the tool."""

SERVER_SHARE = 0.2
"""Share of the distance from its server's best tools to the best of all that a tool loses, in requests of several
steps."""

SERVER_EVIDENCE = 3
"""Number of tools that count as evidence for a server: one good match is a coincidence, three are its subject."""

MAX_SERVER_LOSS = 0.5
CHARACTERS_PER_WORD = 3
"""Characters that count as one word in scripts written without spaces."""

ONE_ACTION = frozenset({"copy/paste", "cut/paste", "drag/drop", "find/replace", "search/replace"})
"""Pairs of verbs that name a single action."""

_SENTENCE_END = re.compile(r"(?<=[.!?;:])\s+|(?<=[。！？；])|\n+")
_JOINT = re.compile(
    r"(,?\s+(?:and then|and also|and finally|after that|afterwards|then|also|finally|additionally|as well as|and|&|but"
    rf"|plus|before|while)\s+|,\s+(?=\w+\s+\w+\s+\w+|(?:{'|'.join(sorted(VERBS))})\b))",
    re.IGNORECASE,
)


def split_clauses(request: str) -> tuple[str, ...]:
    """Return the steps of a request, at most MAX_CLAUSES; empty if it is a single step.

    They use the request's own words, but verbs with a common object (`stage and commit changes`) each get the object,
    and objects with a common verb (`remember a person and how they work`) each get the verb.
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
    """Return strengths (n,) from those for the whole request (n,) and for each clause (k, n).

    A tool counts by the clause in which it is closest to the best tool, so the best tools of all clauses are on one
    level, and a clause that is easy to match does not crowd out the others.
    """
    best = clauses.max(axis=1, keepdims=True)
    nearest: Floats = (clauses - best).max(axis=0) + best.mean()
    combined: Floats = (1 - CLAUSE_SHARE) * whole + CLAUSE_SHARE * nearest
    return combined.astype(np.float32)


def interleaved(strengths: Floats, whole: Floats, clauses: Floats, texts: Sequence[str]) -> Floats:
    """Redistribute the strengths (n,) so that the best tool of each clause (k, n) comes first; `texts` are the clauses.

    So no clause is crowded out by the many tools of another, and the set of values stays the same.
    """
    is_brief = np.asarray([_words(text) <= MAX_BRIEF_WORDS for text in texts])
    share: Floats = np.where(is_brief, BRIEF_SHARE, STEP_SHARE)[:, np.newaxis].astype(np.float32)
    chosen = np.zeros(len(strengths), dtype=np.bool_)
    chosen[_one_each((1 - share) * whole + share * clauses, clauses, is_brief)] = True
    dealt = np.empty_like(strengths)
    dealt[np.lexsort((-strengths, ~chosen))] = -np.sort(-strengths)
    return dealt


def _one_each(strengths: Floats, alone: Floats, is_brief: npt.NDArray[np.bool_]) -> list[int]:
    """Choose a tool for each clause from its strengths mixed with the whole request's (k, n), and those alone (k, n).

    The tool that fits the whole request is often also the best of brief clauses (k,), which contain little evidence. If
    another clause has a better claim to it, a brief clause takes its next one, unless it is its best alone as well.
    """
    left = strengths.copy()
    unwritable_places = alone.max(axis=1) - alone[np.arange(len(alone)), strengths.argmax(axis=1)]
    chosen: list[int] = []
    for clause in np.argsort(unwritable_places, kind="stable"):
        if is_brief[clause] and unwritable_places[clause] > 0 and len(chosen) < strengths.shape[1]:
            left[clause, chosen] = -np.inf
        chosen.append(int(left[clause].argmax()))
    return chosen


def with_server_evidence(strengths: Floats, servers: npt.NDArray[np.int64]) -> Floats:
    """Return the strengths (n,), lowered for tools whose server (n,) has few other tools that fit."""
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
    """Split a sentence at those joints at which a new step begins."""
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
    """Return True if a part is a new step: a command after a command, or any long part if `anywhere`.

    A verb alone counts only if it is in ALONE; others are as often nouns: `write a summary and report`.
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
