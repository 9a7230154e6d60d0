"""Obstacles to starting servers, found without starting any.

The configuration, the logins, running gateways and the last listing are consulted. URLs that appear in none of them
get one request each, all at once and with a time limit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import anyio
import httpx2

from pml_gateway.catalog.manifest import ManifestFile
from pml_gateway.config.advice import hindrances
from pml_gateway.config.findings import Finding, Severity
from pml_gateway.config.servers import Transport, UpstreamDefinition
from pml_gateway.config.settings import Settings
from pml_gateway.errors import SecretError
from pml_gateway.mcp.http import CREDENTIALS_REFUSED
from pml_gateway.mcp.transport import resolved_headers
from pml_gateway.owner.operations import STATUS
from pml_gateway.owner.sockets import ask_gateways
from pml_gateway.paths import Paths
from pml_gateway.reports.status import login_needed, need_of, stored_login
from pml_gateway.secrets.references import resolve_in
from pml_gateway.types import JsonObject
from pml_gateway.working_directory import WorkingDirectory

UNANSWERED = (404, 410, 429, *range(500, 600))
"""Statuses by which a server or a proxy in front of it says that it cannot answer."""

SOCKET_SECONDS = 2.0
"""Time limit for a running gateway, which answers in milliseconds; a busier one is not asked again."""

PROBE_SECONDS = 5.0
"""Time limit for all requests to unknown URLs together."""

_PING: JsonObject = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
"""A request that shows if a server requires a login, and opens no session."""


async def unready(
    settings: Settings, servers: Collection[str], paths: Paths, identity: str, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the reason and remedy for each of `servers` that the gateway could not start or show now.

    Args:
        settings: settings of the gateway.
        servers: ids of configured servers.
        paths: where the gateway's files lie.
        identity: identity of the configuration.
        environ: variables that references are resolved with.
    """
    answers = await ask_gateways(paths, STATUS, SOCKET_SECONDS, removes_dead=False)
    running = [row for answer in answers.results for row in answer["upstreams"]]
    listed = ManifestFile(paths.manifest_dir, identity, settings.naming.prefix).load().entries
    found: dict[str, str] = {}
    unknown: dict[str, UpstreamDefinition] = {}
    for server in servers:
        definition = settings.servers[server]
        told = [row for row in running if row["server"] == server]
        login = (await stored_login(server, definition, paths))["state"]
        reason = _written_down(settings, server, environ) or _told(told)
        if reason or login == "login_needed":
            found[server] = reason or _text(login_needed(server))
        elif definition.url is not None and login not in ("logged_in", "client_credentials"):
            known = listed.get(server)
            is_known = known is not None and known.fingerprint == definition.fingerprint()
            if not is_known and not any(row["tools"] for row in told):
                unknown[server] = definition
    return {**found, **await _probed(unknown)}


def _written_down(settings: Settings, server: str, environ: Mapping[str, str]) -> str:
    if not settings.servers[server].enabled:
        return f"it is disabled in the gateway (servers.{server}.enabled)"
    return next(map(_text, hindrances(settings, server, environ)), "")


def _told(rows: Sequence[JsonObject]) -> str:
    """Return the running gateways' errors for a server, or none if one of them has it."""
    reasons = [
        _text(need)
        for row in rows
        if (need := need_of(row)) is not None
        and (need.severity is Severity.ERROR or (row["held_back"] and not row["tools"]))
    ]
    return reasons[0] if rows and len(reasons) == len(rows) else ""


def _text(finding: Finding) -> str:
    return str(replace(finding, subject=""))


async def _probed(servers: Mapping[str, UpstreamDefinition]) -> dict[str, str]:
    """Return the obstacles that the answers of servers to one request show."""
    found = dict.fromkeys(servers, f"it did not answer within {PROBE_SECONDS:g} s")

    async def probe(http: httpx2.AsyncClient, server: str) -> None:
        found[server] = await _refusal(http, server, servers[server])

    if servers:
        with anyio.move_on_after(PROBE_SECONDS):
            async with httpx2.AsyncClient(timeout=PROBE_SECONDS) as http, anyio.create_task_group() as tasks:
                for server in servers:
                    tasks.start_soon(probe, http, server)
    return {server: reason for server, reason in found.items() if reason}


async def _refusal(http: httpx2.AsyncClient, server: str, definition: UpstreamDefinition) -> str:
    method, body = ("GET", None) if definition.resolved_transport is Transport.SSE else ("POST", _PING)
    here = WorkingDirectory.here()
    try:
        headers = {**resolved_headers(definition, here), "accept": "application/json, text/event-stream"}
        async with http.stream(method, resolve_in(definition.url or "", here), headers=headers, json=body) as response:
            status = response.status_code
    except (httpx2.HTTPError, httpx2.InvalidURL, SecretError) as error:
        # The text of the error may quote the URL, which may hold a key.
        return f"it cannot be reached ({type(error).__name__}); pml upstreams says more"
    if status in CREDENTIALS_REFUSED:
        refused = f"it refuses its configured headers (HTTP {status}); correct servers.{server}.headers"
        return refused if definition.headers else _text(login_needed(server))
    return f"it answers with HTTP {status}" if status in UNANSWERED else ""
