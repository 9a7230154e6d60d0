"""The lint: reads definitions as a model would, and says what in them is meant for the model and not for the user."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pml_gateway.index.embedder import Embedder
from pml_gateway.trust.verdict import Verdict
from pml_gateway.types import JsonObject


class SubjectKind(StrEnum):
    """What a server says of itself."""

    TOOL = "tool"
    PROMPT = "prompt"
    RESOURCE = "resource"
    TEMPLATE = "template"
    INSTRUCTIONS = "instructions"
    """The definition is `{"instructions": text, "name": server name, "version": ...}`."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One definition in a server's own words; `before` is what was accepted, where it is a change of that."""

    kind: SubjectKind
    server: str
    definition: JsonObject
    before: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class Peer:
    """A tool of another server, which a definition may take the name of or give orders about."""

    server: str
    name: str


class Linter:
    """Judges definitions, offline and always alike; without an embedder, by words alone."""

    def __init__(self, embedder: Embedder | None = None) -> None:
        self._embedder = embedder

    def judge(self, subjects: Sequence[Subject], peers: Collection[Peer] = ()) -> list[Verdict]:
        """One verdict per subject, in their order. CPU work: call it in a thread."""
        return [Verdict() for _ in subjects]
