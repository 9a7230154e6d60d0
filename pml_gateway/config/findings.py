"""Findings of checks: severity, subject, and the command or edit that fixes it; and the runner of all checks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

from pml_gateway.config.settings import Settings
from pml_gateway.errors import GatewayError
from pml_gateway.secrets.judgement import MASK
from pml_gateway.secrets.known import KNOWN_SECRETS
from pml_gateway.text import counted


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
    STORAGE = "storage"
    GATEWAYS = "gateways"
    FILES = "files"
    VERSIONS = "versions"


_ORDER = {area: position for position, area in enumerate(Area)}


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
    npx_folder: str = ""
    """Folder of npx's cache that is to be removed, where the finding comes from another process."""
    is_fixed: bool = False

    def __str__(self) -> str:
        return "; ".join(filter(None, (": ".join(filter(None, (self.subject, self.what))), self.fix)))

    @property
    def digest(self) -> str:
        """Return a text by which the finding is recognised when it is found again."""
        told = "\n".join((self.area, self.subject, self.what))
        return hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def is_fault(self) -> bool:
        """Return True for warnings and errors."""
        return self.severity in (Severity.WARNING, Severity.ERROR)

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


def from_text(area: Area, severity: Severity, text: str) -> Finding:
    """Return a warning of another part: what follows the last semicolon is its remedy."""
    what, separator, fix = text.rpartition("; ")
    return Finding(area, severity, "", what if separator else text, fix if separator else "")


def in_brief(warnings: Sequence[Finding]) -> list[str]:
    """Return one line about the warnings of the configuration, but for those about intents; none if there are none."""
    count = sum(warning.area is not Area.INTENT for warning in warnings)
    return [f"the configuration has {counted(count, 'warning')}; see: pml config validate"] if count else []


def from_error(area: Area, error: GatewayError, subject: str = "", details: tuple[str, ...] = ()) -> Finding:
    """Return an error of the gateway with its hint as the remedy; it need not repeat its subject."""
    return Finding(
        area, Severity.ERROR, subject, error.message.removeprefix(f"{subject}: "), error.hint, details=details
    )


@dataclass(frozen=True, slots=True)
class SettingsCase:
    """Settings to check, and the variables that their references are looked up in.

    Checks that need more than settings take a case of their own, which is one of these as well.
    """

    settings: Settings
    environ: Mapping[str, str]


Case = TypeVar("Case", bound=SettingsCase)

Check = Callable[[Case], Iterable[Finding]]
"""A check is named by its function, and needs what its case has."""


def run_checks(checks: Iterable[Check[Case]], case: Case) -> list[Finding]:
    """Run each check, and return the findings by area, without known secrets. Blocking."""
    return by_area(finding.masked() for check in checks for finding in check(case))


def by_area(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings in the order of their areas."""
    return sorted(findings, key=lambda finding: _ORDER[finding.area])
