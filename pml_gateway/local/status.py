"""What the gateway process of a machine tells of itself: its clients, and the processes of its servers with reasons."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from pml_gateway.local.profiles import Profile
from pml_gateway.local.session import Member
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.pool import Follower, Running
from pml_gateway.upstreams.sharing import SharedBy
from pml_gateway.upstreams.upstream import Session

OTHERS = "started with other variables or another PATH than for the rest"


def client_rows(profiles: Iterable[Profile]) -> list[JsonObject]:
    """Every client that is attached, in the order in which they came; times in seconds."""
    found = [(profile, member) for profile in profiles for member in profile.members]
    return [_client(profile, member) for profile, member in sorted(found, key=lambda each: each[1].since)]


def server_rows(running: Iterable[Running], profiles: Iterable[Profile]) -> list[JsonObject]:
    """Every server that somebody has, with its processes and for whom each runs; memory in bytes."""
    members: dict[Follower | None, list[Member]] = {profile.pool: profile.members for profile in profiles}
    names = {member.attachment.client.id: _whose(member) for each in members.values() for member in each}
    by_server: dict[str, list[Running]] = {}
    for each in running:
        by_server.setdefault(each.upstream.upstream_id, []).append(each)
    rows = []
    for server, found in sorted(by_server.items()):
        upstreams = [each.upstream for each in found]
        clients = {id(member) for each in found for pool in each.followers for member in members.get(pool, ())}
        rows.append(
            {
                "server": server,
                "state": max(upstreams, key=lambda each: each.calls).state.value,
                "calls": sum(each.calls for each in upstreams),
                "clients": len(clients),
                "processes": [row for each in found for row in _processes(each, names, several=len(found) > 1)],
            }
        )
    return rows


def memory_of(pid: int) -> int | None:
    """Resident bytes of a process; None where the system does not say."""
    if sys.platform != "linux":
        return None
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _client(profile: Profile, member: Member) -> JsonObject:
    runtime = profile.runtime
    return {
        "name": member.name,
        "pid": member.attachment.pid,
        "folder": str(member.attachment.workplace.folder),
        "mode": runtime.gateway.state.settings.gateway.tools_exposure.value if runtime is not None else None,
        "calls": member.calls,
        "since_seconds": round(time.monotonic() - member.since, 3),
    }


def _whose(member: Member) -> str:
    return f"client {member.name or 'not known yet'} ({member.attachment.pid})"


def _processes(running: Running, names: dict[str, str], *, several: bool) -> Iterator[JsonObject]:
    for session in running.upstream.sessions():
        if session.pid is not None:
            whose, why = _reason(running, session, names, several=several)
            yield {"pid": session.pid, "memory_bytes": memory_of(session.pid), "for": whose, "why": why}


def _reason(running: Running, session: Session, names: dict[str, str], *, several: bool) -> tuple[str, str]:
    sharing = running.wanted.sharing
    if not session.is_shared:
        return names.get(session.client_id, "a client over HTTP"), session.why
    match sharing.by:
        case SharedBy.FOLDER:
            return f"folder {sharing.place.folder}", sharing.reason
        case SharedBy.CLIENT:
            return "lists", "clients have sessions of their own"
        case SharedBy.EVERYBODY:
            return ("some", OTHERS) if several else ("everybody", "")
