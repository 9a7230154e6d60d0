"""What the searches of one conversation said of tools: their names, their parameters, and what comes back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.tasks import Step, Task

_REFERENCE = re.compile(r"\$(\w+)\.(\w+)")
_MARK = re.compile(r" \[(read|write|destructive)\]$")
_OPENING, _CLOSING = "([{", ")]}"


@dataclass(frozen=True, slots=True)
class Signature:
    """A hit's signature, taken apart: parameters with whether they are required, and the text of what comes back."""

    parameters: Mapping[str, bool]
    returned: str = ""

    @classmethod
    def read(cls, text: str) -> Signature:
        """From `name(path: str, head?: float) -> {content} [read]`."""
        inside, rest = _in_parentheses(text)
        names = [part.partition(":")[0].strip() for part in _parts(inside)]
        parameters = {name.removesuffix("?"): not name.endswith("?") for name in names if name}
        return cls(parameters, _MARK.sub("", rest).removeprefix(" -> ").removeprefix("~"))

    def names(self, field: str) -> bool:
        """Whether what comes back is said to have such a field."""
        return field in re.findall(r"[\w$@-]+", self.returned)


def signatures_of(answer: Mapping[str, Any]) -> dict[str, Signature]:
    """By tool, what an answer of `search_tools` says."""
    return {hit["name"]: Signature.read(hit["signature"]) for hit in answer["hits"] if "signature" in hit}


def objections(task: Task, known: Mapping[str, Signature]) -> list[str]:
    """What in the task's calls nobody would write who only knows the signatures.

    What comes from an earlier round is not looked at here: it is taken from the answer itself.
    """
    found = [each for step in task.steps if step.server for each in _of_call(step, known.get(step.qualified_name))]
    for one in task.rounds:
        by_id = {step.id: step.qualified_name for step in one.steps if step.server}
        for step in one.steps:
            for name, field in _REFERENCE.findall(json.dumps([step.arguments, step.more])):
                signature = known.get(by_id.get(name, ""))
                if signature is not None and not signature.names(field):
                    found.append(f"{step.id}: {by_id[name]} is not said to give {field}")
    return found


def _of_call(step: Step, signature: Signature | None) -> list[str]:
    if signature is None:
        return [f"{step.id}: no search found {step.qualified_name}"]
    given = step.arguments.keys()
    needed = {name for name, is_required in signature.parameters.items() if is_required}
    unknown = [f"{step.id}: no hit named the argument {name}" for name in sorted(given - signature.parameters.keys())]
    return unknown + [f"{step.id}: it needs the argument {name}" for name in sorted(needed - given)]


def _in_parentheses(text: str) -> tuple[str, str]:
    """What stands in the first parentheses, and what follows them."""
    start = text.index("(")
    for end, depth in _depths(text, start):
        if depth == 0:
            return text[start + 1 : end], text[end + 1 :]
    raise ValueError(f"{text!r} is no signature: its parenthesis is not closed")


def _parts(text: str) -> list[str]:
    """The texts between the commas that stand in no bracket."""
    commas = [at for at, depth in _depths(text, 0) if depth == 0 and text[at] == ","]
    bounds = [-1, *commas, len(text)]
    return [text[start + 1 : end] for start, end in pairwise(bounds)]


def _depths(text: str, start: int) -> Iterable[tuple[int, int]]:
    """Every place from `start` on that is in no quotes, and how many brackets are open after it."""
    depth, is_quoted = 0, False
    for at in range(start, len(text)):
        if text[at] == '"' and text[at - 1 : at] != "\\":
            is_quoted = not is_quoted
        if not is_quoted:
            depth += (text[at] in _OPENING) - (text[at] in _CLOSING)
            yield at, depth
