"""Audit records made of accesses: who used what, what decided, and how it ended."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pml_gateway.activity.arguments import kept_arguments, masked, size_of
from pml_gateway.activity.audit import AUDIT_NAME, Audit
from pml_gateway.config.settings import AuditSettings, Settings
from pml_gateway.gateway.call import Access, AccessBegun
from pml_gateway.telemetry.events import Events
from pml_gateway.text import utc
from pml_gateway.types import JsonObject


def audit_file(settings: Settings, home: Path) -> Path | None:
    """Return the file of the audit; None if there is none."""
    audit = settings.audit
    match audit.path:
        case "off":
            return None
        case "auto":
            return home / AUDIT_NAME if audit.required or len(settings.clients) > 1 else None
        case path:
            return home / Path(path).expanduser()


class AuditSubscriber:
    """Writes what one gateway's clients use, as the current settings say.

    `export` gets the records as well, if they go to a collector.
    """

    def __init__(self, identity: str, home: Path, audit: Audit, export: Callable[[JsonObject], None] | None) -> None:
        self._config = identity
        self._home = home
        self._audit = audit
        self._export = export

    def subscribe_to(self, events: Events) -> None:
        """Write what happens from now on; a record that is required and cannot be written refuses the call."""
        events.subscribe(AccessBegun, self.begun, is_required=True)
        events.subscribe(Access, self.accessed, is_required=True)

    def begun(self, event: AccessBegun) -> None:
        """Write that something will be sent, if records are required."""
        attempt = event.attempt
        settings = attempt.context.state.settings
        path = audit_file(settings, self._home) if settings.audit.required else None
        if path is None:
            return
        record: JsonObject = {
            "ts": utc(event.at),
            "event": "begin",
            "id": attempt.id,
            "client": attempt.context.scope.client.shown,
            "method": attempt.method,
            "server": attempt.server,
            "name": masked(attempt.target),
            **_arguments(attempt.sent_arguments, settings.audit),
            "process": os.getpid(),
        }
        self._audit.write(path, record)

    def accessed(self, event: Access) -> None:
        """Write how an access ended."""
        settings = event.attempt.context.state.settings
        path = audit_file(settings, self._home)
        if path is None:
            return
        if not settings.audit.required:
            self._audit.add(path, lambda: self._exported(event, settings.audit))
            return
        self._audit.write(path, self._exported(event, settings.audit))

    def _exported(self, event: Access, settings: AuditSettings) -> JsonObject:
        record = self._record(event, settings)
        if self._export is not None:
            self._export(record)
        return record

    def _record(self, event: Access, settings: AuditSettings) -> JsonObject:
        attempt, tool = event.attempt, event.tool
        return {
            "ts": utc(event.began),
            "event": "access",
            "id": attempt.id,
            "client": event.principal.shown,
            "method": attempt.method,
            "server": event.server,
            "tool": "" if tool is None else tool.name,
            "name": masked(event.target),
            "effect": event.effect.value,
            "decision": "refused" if event.is_refused else "allowed",
            "rule": event.rule,
            "approval": attempt.approval,
            "outcome": event.code,
            "seconds": round(event.seconds, 6),
            "sends": attempt.sends.count,
            "given": size_of(attempt.arguments),
            "answered": 0 if attempt.result is None else size_of(attempt.result),
            **_arguments(attempt.arguments, settings),
            "request_id": event.request_id,
            "config": self._config,
            "process": os.getpid(),
        }


def _arguments(arguments: JsonObject, settings: AuditSettings) -> JsonObject:
    kept, shown = kept_arguments(arguments, settings.arguments)
    return {} if shown is None else {"kept": kept, "arguments": shown}
