"""Findings of checks: severity, subject, and the command or edit that fixes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pml_gateway.errors import GatewayError
from pml_gateway.secrets.judgement import MASK
from pml_gateway.secrets.known import KNOWN_SECRETS


class Severity(StrEnum):
    """From nothing to do to something that does not work."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


class Area(StrEnum):
    """Area of a finding, in the order of the report."""

    CONFIGURATION = "configuration"
    INTENT = "intent"
    SECRETS = "secrets"
    COMMANDS = "commands"
    SERVERS = "servers"
    TOOLS = "tools"
    TRUST = "trust"
    SEARCH = "search"
    CLIENTS = "clients"
    MACHINE = "machine"
    GATEWAYS = "gateways"
    FILES = "files"
    VERSIONS = "versions"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    `subject` is the server, client, key or file it is about; `details` are lines that explain it, such as the last
    words of a server; `repair` puts it right without a person, where that cannot do harm, or after a `question`.
    """

    area: Area
    severity: Severity
    subject: str
    what: str
    fix: str = ""
    details: tuple[str, ...] = ()
    repair: Callable[[], None] | None = field(default=None, repr=False, compare=False)
    question: str = ""
    is_fixed: bool = False

    def masked(self) -> Finding:
        """Return the finding without any secret that this process knows: what servers say may hold one."""
        subject, what, fix, *details = (
            KNOWN_SECRETS.masked(text, MASK) for text in (self.subject, self.what, self.fix, *self.details)
        )
        return replace(self, subject=subject, what=what, fix=fix, details=tuple(details))

    def repaired(self) -> Finding:
        """Return the finding after its repair, or with the reason why that failed."""
        if self.repair is None:
            return self
        try:
            self.repair()
        except OSError as exc:
            return replace(self, details=(*self.details, f"not repaired: {exc.strerror}"))
        return replace(self, is_fixed=True)


def from_text(area: Area, severity: Severity, text: str, subject: str = "") -> Finding:
    """Return a warning of another part: what follows the last semicolon is its remedy."""
    what, separator, fix = text.rpartition("; ")
    return Finding(area, severity, subject, what if separator else text, fix if separator else "")


def from_error(area: Area, error: GatewayError, subject: str = "", details: tuple[str, ...] = ()) -> Finding:
    """Return an error of the gateway with its hint as the remedy; it need not repeat its subject."""
    return Finding(
        area, Severity.ERROR, subject, error.message.removeprefix(f"{subject}: "), error.hint, details=details
    )
