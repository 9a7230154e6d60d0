"""A client's file becomes one line of `pml clients`: what the client gets its tools from."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pml_gateway.config.clients.discover import ClientFile
from pml_gateway.config.clients.own import ConnectionKind, own_kind
from pml_gateway.config.settings import HttpSettings

State = Literal["absent", "empty", "direct", "connected", "both", "broken"]


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """What one file says.

    `servers` counts the entries beside the gateway's own; `kind` is how the client reaches the gateway; `is_pinned`
    whether it loads the gateway's tools at once (None: it always does, or is not connected).
    """

    file: ClientFile
    state: State
    kind: ConnectionKind | None
    servers: int
    problem: str = ""
    is_pinned: bool | None = None


def client_status(file: ClientFile, http: HttpSettings) -> ClientStatus:
    """The state of one file."""
    own = {name: kind for name, raw in file.entries.items() if (kind := own_kind(raw, http))}
    kind = next(iter(own.values()), None)
    servers = len(file.entries) - len(own)
    if file.problem:
        return ClientStatus(file, "broken", None, 0, file.problem)
    problem = next(filter(None, (_unstartable(file.entries[name]) for name in own)), "")
    if problem:
        return ClientStatus(file, "broken", kind, servers, f"{problem}; run pml connect {file.client.name}")
    if not file.exists:
        return ClientStatus(file, "absent", None, 0)
    if kind is not None:
        pin = file.client.pin_key
        is_pinned = all(file.entries[name].get(pin) is True for name in own) if pin else None
        return ClientStatus(file, "both" if servers else "connected", kind, servers, is_pinned=is_pinned)
    return ClientStatus(file, "direct" if servers else "empty", None, servers)


def _unstartable(raw: Any) -> str:
    command = raw.get("command")
    command = command.get("path") if isinstance(command, dict) else command
    if not isinstance(command, str) or shutil.which(str(Path(command).expanduser())):
        return ""
    return f"the gateway's command {command} does not exist"
