"""Doctor: definitions that wait for their owner's decision, and pins that cannot be kept."""

from __future__ import annotations

from collections.abc import Iterator

from pml_gateway.reports.doctor.finding import Area, Finding, Severity
from pml_gateway.text import counted, quoted
from pml_gateway.trust.identity import SERVER, Key
from pml_gateway.trust.trust_gate import TrustGate

MAX_NAMED = 5


def trust(trust_gate: TrustGate) -> Iterator[Finding]:
    """Check for definitions held back or flagged, and for an unusable file of pins."""
    if trust_gate.file.problem:
        yield Finding(
            Area.TRUST,
            Severity.WARNING,
            "",
            f"{trust_gate.file.problem}: what is accepted and held back is forgotten at every end",
            "make the folder writable, and see that the disk is not full",
        )
    is_quiet = True
    for server, pins in trust_gate.servers.items():
        if pins.held:
            is_quiet = False
            names = _names([key[1] if key != SERVER else "the server itself" for key in pins.held])
            first = _typed(server, next(iter(pins.held)))
            yield Finding(
                Area.TRUST,
                Severity.WARNING,
                server,
                f"{counted(len(pins.held), 'definition')} held back: {names}",
                f"pml trust show {first}, then pml trust approve {first} or pml trust reject {first}",
            )
        flagged = [key[1] or "the server itself" for key in pins.flagged]
        if flagged:
            is_quiet = False
            first = _typed(server, pins.flagged[0])
            yield Finding(
                Area.TRUST,
                Severity.WARNING,
                server,
                f"{counted(len(flagged), 'accepted definition')} may be an attack: {_names(flagged)}",
                f"pml trust show {first}, then pml trust approve {first} or pml trust reject {first}",
            )
    if is_quiet and trust_gate.servers:
        pinned = sum(len(pins.accepted) for pins in trust_gate.servers.values())
        yield Finding(Area.TRUST, Severity.OK, "", f"{counted(pinned, 'definition')} pinned; none is held back")


def _typed(server: str, key: Key) -> str:
    """Write a definition as commands take it."""
    return quoted(server if key == SERVER else f"{server}:{key[1]}")


def _names(names: list[str]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
