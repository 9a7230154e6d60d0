"""Subjects for the lint, and its verdicts with their reasons."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pml_gateway.types import JsonObject


class RiskClass(StrEnum):
    """Class of attack; the values are those of `pml trust lint --json`."""

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

    @property
    def why(self) -> str:
        """One plain line that says what text of this class does."""
        return _WHY[self]


_WHY = {
    RiskClass.HIDDEN_INSTRUCTION: "it gives the model orders that the user does not see",
    RiskClass.DATA_EXFILTRATION: "it has data sent along or elsewhere that the tool does not need",
    RiskClass.TOOL_SHADOWING: "it speaks for a tool of another server",
    RiskClass.CROSS_TOOL_MANIPULATION: "it gives orders about tools of other servers",
    RiskClass.PRIVILEGE_ESCALATION: "it lifts confirmations, checks or limits",
    RiskClass.OBFUSCATED_TEXT: "it hides text from people that a model reads",
    RiskClass.SCHEMA_POISONING: "it gives the model orders inside a schema",
    RiskClass.RUG_PULL: "it came with a change of an accepted definition",
    RiskClass.PREFERENCE_MANIPULATION: "it has the model choose this tool over those of other servers",
    RiskClass.CREDENTIAL_REQUEST: "it asks for passwords, keys or codes",
    RiskClass.EMBEDDED_SECRET: "it contains a key or a password",
}


class Level(StrEnum):
    """Severity of a verdict."""

    ATTACK = "attack"
    """Held back where it appears in a change; a new server that has it is warned of."""
    NOTICE = "notice"
    """Shown by `pml trust lint`, and never held back."""


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
class LintFinding:
    """All that was found in the same words."""

    where: str
    text: str
    classes: tuple[RiskClass, ...]

    @property
    def why(self) -> str:
        """One plain line that says what the words do."""
        return self.classes[0].why


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one definition; `score` is between 0 (nothing found) and 1."""

    level: Level | None = None
    score: float = 0.0
    reasons: tuple[Reason, ...] = ()

    @property
    def is_attack(self) -> bool:
        """Return True if the verdict is an attack."""
        return self.level is Level.ATTACK

    @property
    def classes(self) -> tuple[RiskClass, ...]:
        """The classes of the reasons, each once, in the order found."""
        return tuple(dict.fromkeys(reason.risk_class for reason in self.reasons))

    @property
    def findings(self) -> list[LintFinding]:
        """The reasons as a person reads them: the same words once, and none that longer ones say as well."""
        found: dict[tuple[str, str], dict[RiskClass, None]] = {}
        for reason in self.reasons:
            found.setdefault((reason.where, reason.text), {})[reason.risk_class] = None
        return [
            LintFinding(where, text, tuple(classes))
            for (where, text), classes in found.items()
            if not any(
                place == where and text != longer and text in longer and classes.keys() <= others.keys()
                for (place, longer), others in found.items()
            )
        ]


class SubjectKind(StrEnum):
    """Kind of definition that a server lists."""

    TOOL = "tool"
    PROMPT = "prompt"
    RESOURCE = "resource"
    TEMPLATE = "template"
    SKILL = "skill"
    """The definition is the front matter of its SKILL.md."""
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
    """Return a tool as others may pose as it."""
    return Peer(server, name, str(definition.get("description") or ""))
