"""What the lint is asked about a definition, and what it says of it, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pml_gateway.types import JsonObject


class RiskClass(StrEnum):
    """What a definition may be up to; the values are those of `pml trust lint --json`."""

    HIDDEN_INSTRUCTION = "hidden_instruction"
    DATA_EXFILTRATION = "data_exfiltration"
    TOOL_SHADOWING = "tool_shadowing"
    CROSS_TOOL_MANIPULATION = "cross_tool_manipulation"
    PRIVILEGE_ESCALATION = "privilege_escalation"
    OBFUSCATED_TEXT = "obfuscated_text"
    SCHEMA_POISONING = "schema_poisoning"
    RUG_PULL = "rug_pull"
    PREFERENCE_MANIPULATION = "preference_manipulation"
    CREDENTIAL_REQUEST = "credential_request"
    EMBEDDED_SECRET = "embedded_secret"


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that was found: `where` is a path inside the definition, `text` the offending span, cut and escaped."""

    risk_class: RiskClass
    where: str
    text: str

    def as_json(self) -> JsonObject:
        """As files and commands write it."""
        return {"class": self.risk_class.value, "where": self.where, "text": self.text}


@dataclass(frozen=True, slots=True)
class Finding:
    """All that was found in the same words."""

    where: str
    text: str
    classes: tuple[RiskClass, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one definition; `score` is between 0 (nothing found) and 1."""

    is_risky: bool = False
    score: float = 0.0
    reasons: tuple[Reason, ...] = ()

    @property
    def classes(self) -> tuple[RiskClass, ...]:
        """The classes of the reasons, each once, in the order found."""
        return tuple(dict.fromkeys(reason.risk_class for reason in self.reasons))

    @property
    def findings(self) -> list[Finding]:
        """The reasons as a person reads them: the same words once, and none that longer ones say as well."""
        found: dict[tuple[str, str], dict[RiskClass, None]] = {}
        for reason in self.reasons:
            found.setdefault((reason.where, reason.text), {})[reason.risk_class] = None
        return [
            Finding(where, text, tuple(classes))
            for (where, text), classes in found.items()
            if not any(
                place == where and text != longer and text in longer and classes.keys() <= others.keys()
                for (place, longer), others in found.items()
            )
        ]


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
    description: str = ""
    """Tells a tool that poses as this one from one that is called alike by chance."""


def peer_of(server: str, name: str, definition: JsonObject) -> Peer:
    """A tool as others may pose as it."""
    return Peer(server, name, str(definition.get("description") or ""))
