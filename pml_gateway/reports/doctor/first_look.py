"""A first look at one server: what it offers, or what keeps it from answering, asked of whoever runs it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import anyio
import anyio.to_thread

from pml_gateway.config.commands.packages import package_run
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.settings import EffectiveSettings, UpstreamSettings
from pml_gateway.errors import UpstreamAuthError
from pml_gateway.mcp.listing import Listed
from pml_gateway.paths import Paths
from pml_gateway.secrets.judgement import MASK
from pml_gateway.secrets.known import KNOWN_SECRETS
from pml_gateway.serve.control import ask_gateways
from pml_gateway.text import counted, some_of
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.auth.logins import login_command
from pml_gateway.upstreams.pool import open_pool, open_shared_upstreams
from pml_gateway.working_directory import WorkingDirectory

POLL_SECONDS = 0.2
TELL_SECONDS = 10.0
TAKEN_OVER_SECONDS = 3.0
"""Time limit in seconds for a gateway that has read the configuration to open the server."""

Outcome = Literal["ready", "login_needed", "failed", "starting"]


@dataclass(frozen=True, slots=True)
class FirstLook:
    """Answer of one server; `tools` are names if this process asked it itself."""

    outcome: Outcome
    count: int = 0
    tools: tuple[str, ...] = ()
    error: str = ""
    hint: str = ""

    def as_json(self) -> JsonObject:
        """For programs."""
        return {
            "state": self.outcome,
            "tools": self.count,
            "names": list(self.tools),
            "error": self.error or None,
            "hint": self.hint or None,
        }


@dataclass(frozen=True, slots=True)
class FollowingGateways:
    """Process ids of the gateways that serve by the current file, and the errors of others."""

    pids: tuple[int, ...] = ()
    problems: tuple[str, ...] = ()


async def tell_gateways(paths: Paths) -> FollowingGateways:
    """Have every running gateway read its configuration now; they watch it, and this is to know."""
    answers = await ask_gateways(paths, "reload", TELL_SECONDS)
    # One process has a gateway for each folder.
    problems = dict.fromkeys(str(answer["error"]) for answer in answers if "error" in answer)
    pids = dict.fromkeys(int(answer["pid"]) for answer in answers if "error" not in answer)
    return FollowingGateways(tuple(pids), tuple(problems))


async def first_look(
    name: str, definition: UpstreamDefinition, defaults: UpstreamSettings, paths: Paths, following: FollowingGateways
) -> FirstLook:
    """Ask the server through a running gateway, or directly if none has it, within a time limit."""
    limit = _limit(name, definition, defaults)
    found = await _by_gateway(name, paths, limit) if following.pids else None
    return found or await _by_itself(name, definition, defaults, paths, limit)


def _limit(name: str, definition: UpstreamDefinition, defaults: UpstreamSettings) -> float:
    effective = EffectiveSettings(name, definition, defaults)
    installs = package_run(definition.command or "", definition.args) is not None
    return effective.connect_timeout + 1 + (effective.first_start_timeout if installs else 0)


async def _by_gateway(name: str, paths: Paths, limit: float) -> FirstLook | None:
    """Wait for a running gateway's report of the server; return None if none has it."""
    deadline, taken_over = time.monotonic() + limit, time.monotonic() + TAKEN_OVER_SECONDS
    while True:
        answers = await ask_gateways(paths, "status", TELL_SECONDS)
        rows = [row for answer in answers for row in answer.get("upstreams", ()) if row["server"] == name]
        if not rows and time.monotonic() > taken_over:
            return None
        found = next((look for row in rows if (look := look_of(name, row)) is not None), None)
        if found is not None:
            return found
        if time.monotonic() > deadline:
            return FirstLook("starting", error=f"{name} has not answered within {limit:g} s")
        await anyio.sleep(POLL_SECONDS)


def look_of(name: str, row: JsonObject) -> FirstLook | None:
    """Return the answer in a gateway's status of a server, or None while it is not known."""
    listed, held_back, flagged = row.get("listed"), int(row.get("held_back") or 0), int(row.get("flagged") or 0)
    # It is ready before it has listed, and its list is there a moment before the gateway has taken it over.
    if row["state"] == "ready" and listed is not None and (row["tools"] or held_back or not listed):
        held = [f"{counted(held_back, 'definition')} held back until you accept them"] if held_back else []
        risky = [f"{counted(flagged, 'definition')} may be an attack"] if flagged else []
        said = "; ".join(held + risky)
        return FirstLook("ready", int(row["tools"]), hint=f"{said}: pml trust" if said else "")
    if row["auth"]["state"] == "login_needed":
        return FirstLook("login_needed", error=str(row["error"] or ""), hint=login_command(name))
    if row["state"] == "failed":
        return FirstLook("failed", error=str(row["error"] or ""))
    return None


async def _by_itself(
    name: str, definition: UpstreamDefinition, defaults: UpstreamSettings, paths: Paths, limit: float
) -> FirstLook:
    async with (
        open_shared_upstreams(
            logs_dir=paths.logs_dir,
            auth_dir=paths.auth_dir,
            installs_dir=paths.installs_dir,
            habits_file=paths.habits_file,
        ) as shared,
        open_pool(shared, WorkingDirectory.here()) as pool,
    ):
        pool.configure({name: definition}, defaults, {}, pool.wanted({name: definition}, defaults))
        pool.request_all()
        await pool.settled(limit)
        upstream = pool.upstreams[name]
        failure, listed = upstream.last_error, upstream.last_listed
    if failure is not None:
        message, hint = (KNOWN_SECRETS.masked(text or "", MASK) for text in (failure.message, failure.hint))
        outcome: Outcome = "login_needed" if isinstance(failure, UpstreamAuthError) else "failed"
        return FirstLook(outcome, error=message, hint=hint)
    if listed is None:
        return FirstLook("starting", error=f"{name} has not answered within {limit:g} s")
    names = tuple(str(tool.get("name") or "") for tool in listed.tools)
    attacks = await anyio.to_thread.run_sync(_attacks, name, listed)
    hint = f"{some_of(attacks)} may be an attack: pml trust shows it once a client has connected" if attacks else ""
    return FirstLook("ready", len(names), names, hint=hint)


def _attacks(server: str, listed: Listed) -> list[str]:
    """Return the names of what the lint takes for an attack."""
    # The lint takes a while to import, which a server that does not answer never needs.
    from pml_gateway.trust.admission import subject_of
    from pml_gateway.trust.identity import SERVER
    from pml_gateway.trust.lint import Linter
    from pml_gateway.trust.verdict import SubjectKind

    record = {"instructions": listed.offers.instructions, "name": listed.server_name, "version": listed.server_version}
    definitions = [("what the server says of itself", SERVER, record)]
    definitions += [
        (f"{own!r}", (SubjectKind.TOOL, own), tool) for tool in listed.tools if (own := str(tool.get("name")))
    ]
    verdicts = Linter().judge([subject_of(server, key, definition) for _, key, definition in definitions])
    return [shown for (shown, _, _), verdict in zip(definitions, verdicts, strict=True) if verdict.is_attack]
