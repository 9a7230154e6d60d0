"""What the lint says of one definition, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
