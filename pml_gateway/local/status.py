"""The status of a machine's gateway process: its clients, and its servers' processes with the reason for each."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pml_gateway.local.profiles import Profile
from pml_gateway.local.session import Member
from pml_gateway.policy.principal import OWNER
from pml_gateway.text import some_of
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.connector import UpstreamState
from pml_gateway.upstreams.pool import Running, SharedUpstreams
from pml_gateway.upstreams.sharing import SharedBy
from pml_gateway.upstreams.upstream import Follower, Upstream

COMMANDS = "commands such as pml call"
"""The owner shown for a process that keeps state from one command to the next."""

OTHERS = "other variables or PATH"
"""The reason shown for a separate process that was started with other variables or another PATH."""

REMOTE = "clients over HTTP"
"""The clients shown for a process that serves none by name."""


def client_rows(profiles: Iterable[Profile]) -> list[JsonObject]:
    """Return a row for each attached client, in order of arrival; times in seconds."""
    found = [(profile, member) for profile in profiles for member in profile.members]
    return [_client(profile, member) for profile, member in sorted(found, key=lambda each: each[1].since)]


def server_rows(upstreams: SharedUpstreams, profiles: Iterable[Profile]) -> list[JsonObject]:
    """Return a row for each server in use, with its processes and the clients of each; memory in bytes."""
    members: dict[Follower, list[Member]] = {
        profile.runtime.gateway.updates: profile.members for profile in profiles if profile.runtime is not None
    }
    by_server: dict[str, list[Running]] = {}
    for each in upstreams.running.values():
        by_server.setdefault(each.upstream.upstream_id, []).append(each)
    rows, children = [], children_by_process()
    for server, found in sorted(by_server.items()):
        whose = [
            [member for follower in each.upstream.followers for member in members.get(follower, ())] for each in found
        ]
        rows.append(
            {
                "server": server,
                "state": _state([each.upstream for each in found]).value,
                "failed_clients": sum(
                    len(clients)
                    for each, clients in zip(found, whose, strict=True)
                    if each.upstream.connector.state is UpstreamState.FAILED
                ),
                "calls": upstreams.calls(server),
                "clients": sum(map(len, whose)),
                "processes": [
                    row
                    for each, clients in zip(found, whose, strict=True)
                    for row in _processes(each, clients, children, is_split=_is_split(each, found))
                ],
            }
        )
    return rows


def tree_memory_of(pid: int, children: Mapping[int, Sequence[int]]) -> int | None:
    """Return the resident bytes of a process and its descendants: the server is often the child of a small launcher."""
    own = memory_of(pid)
    if own is None:
        return None
    return own + sum(tree_memory_of(child, children) or 0 for child in children.get(pid, ()))


def children_by_process() -> dict[int, list[int]]:
    """Return the children of every visible process; empty if the system has no /proc."""
    found: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        # The process may have just ended.
        with suppress(OSError, ValueError, IndexError):
            parent = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
            found.setdefault(parent, []).append(int(folder.name))
    return found


def memory_of(pid: int) -> int | None:
    """Return the resident bytes of a process; None if unknown."""
    if sys.platform != "linux":
        return None
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def age_of(pid: int) -> float | None:
    """Return the seconds since a process was started; None if unknown."""
    if sys.platform != "linux":
        return None
    try:
        began = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
        return round(time.clock_gettime(time.CLOCK_BOOTTIME) - began / os.sysconf("SC_CLK_TCK"), 3)
    except (OSError, ValueError, IndexError):
        return None


def _client(profile: Profile, member: Member) -> JsonObject:
    runtime = profile.runtime
    return {
        "name": member.name,
        "pid": member.attachment.pid,
        "is_command": member.is_command,
        "folder": str(member.attachment.working_directory.folder),
        "mode": runtime.gateway.state.settings.gateway.tools_exposure.value if runtime is not None else None,
        "calls": member.calls,
        "memory_bytes": memory_of(member.attachment.pid),
        "since_seconds": round(time.monotonic() - member.since, 3),
    }


def _state(upstreams: Sequence[Upstream]) -> UpstreamState:
    """Return the state of the most used working process; idle counts as ready if it has sessions of single clients."""
    working = [each for each in upstreams if each.connector.state is not UpstreamState.FAILED]
    state = max(working or upstreams, key=lambda each: each.activity.sent_calls).connector.state
    if state is UpstreamState.IDLE and any([*each.sessions] for each in upstreams):
        return UpstreamState.READY
    return state


def _is_split(running: Running, found: Sequence[Running]) -> bool:
    """Return True if other processes of the same server differ from it in more than their folder."""
    sharing = running.wanted.sharing
    others = (each.wanted.sharing for each in found if each is not running)
    return any(sharing.by is not SharedBy.FOLDER or each.place.folder == sharing.place.folder for each in others)


def _processes(
    running: Running, clients: Sequence[Member], children: Mapping[int, Sequence[int]], *, is_split: bool
) -> Iterator[JsonObject]:
    sessions = [*running.upstream.sessions]
    own = {session.client_id for session in sessions if not session.is_shared}
    for session in sessions:
        if session.pid is None:
            continue
        if session.is_shared:
            served = [member for member in clients if member.attachment.client.id not in own]
            whose, why = _reason(running, served, is_split=is_split)
        else:
            served = [member for member in clients if member.attachment.client.id == session.client_id]
            whose, why = COMMANDS if session.client_id == OWNER.id else _named(served), session.why
        yield {
            "pid": session.pid,
            "memory_bytes": tree_memory_of(session.pid, children),
            "since_seconds": age_of(session.pid),
            "clients": len(served),
            "for": whose,
            "why": why,
        }


def _reason(running: Running, clients: Sequence[Member], *, is_split: bool) -> tuple[str, str]:
    sharing = running.wanted.sharing
    match sharing.by:
        case SharedBy.FOLDER if is_split:
            return f"folder {sharing.place.folder}", f"{sharing.reason}; {OTHERS} for {_named(clients)}"
        case SharedBy.FOLDER:
            return f"folder {sharing.place.folder}", sharing.reason
        case SharedBy.CLIENT:
            return "lists", "clients have sessions of their own"
        case SharedBy.EVERYBODY:
            return (_named(clients), OTHERS) if is_split else ("everybody", "")


def _named(clients: Sequence[Member]) -> str:
    """Return the names of a process's clients; those over HTTP are not known by name."""
    if not clients:
        return REMOTE
    return f"client {some_of([each.shown for each in clients])}"
