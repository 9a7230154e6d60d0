"""The status of processes that serve and of every server, and the commands that fix it: now, or as last seen."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypedDict

import anyio

from pml_gateway import __version__
from pml_gateway.catalog.manifest import ManifestEntry, ManifestFile
from pml_gateway.catalog.prompts_and_resources import OfferKind
from pml_gateway.config.advice import hindrances
from pml_gateway.config.document import is_there
from pml_gateway.config.findings import Area, Finding, Severity
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.settings import Settings
from pml_gateway.mcp.listing import Offers
from pml_gateway.paths import Paths
from pml_gateway.secrets.judgement import MASK
from pml_gateway.secrets.known import KNOWN_SECRETS
from pml_gateway.text import counted, quoted, shortened, span
from pml_gateway.trust.identity import identity_of
from pml_gateway.trust.pins_file import PinsFile
from pml_gateway.types import JsonObject

if TYPE_CHECKING:
    # The server stack takes 0.7 s to import, which commands that only show a status do without.
    from pml_gateway.catalog.model import CatalogTool
    from pml_gateway.gateway.gateway import Gateway
    from pml_gateway.serve.runtime import Runtime
    from pml_gateway.storage.replicas import Replica, Replicas
    from pml_gateway.upstreams.upstream import Upstream

NOT_RUNNING = "not_running"
"""The state of a server while no gateway runs."""

INSTALLING, FAILED = "installing", "failed"
"""States as of `UpstreamState`, whose module takes the whole server stack."""

DISABLED = "disabled"
"""The state of a server that the configuration switches off: no gateway has it."""

PASSING = frozenset({"latency_seconds", "age_seconds", "in_flight", "breaker"})
"""Fields of a server that change all the time without a change of its state."""

MAX_WHAT = 600
"""Characters of a fault, which servers write; `pml upstreams` shows all."""

Progress = Callable[[str], None]
PROGRESS_SECONDS = 0.2


class ProcessStatus(TypedDict, total=False):
    """The state of a process that serves; times in seconds, and in `upstreams` a row for each server.

    Without a process (`pid` is None), it is the last known state of the servers, and only `mode` and `tools` besides.
    `storage` is the Redis server of replicas: why it fails and for how long, and a row for each replica.
    What follows `upstreams` only the gateway that clients share has: a row for each client, and the processes of each
    server.
    """

    pid: int | None
    version: str
    config: str
    transport: str
    url: str | None
    age_seconds: float
    is_ending: bool
    gateways: int
    mode: str | None
    tools: int
    client_count: int
    storage: JsonObject
    upstreams: list[JsonObject]
    started_by: str
    http_clients: int | None
    not_listening: str | None
    memory_bytes: int | None
    clients: list[JsonObject]
    servers: list[JsonObject]


def login_needed(server: str) -> Finding:
    """Return the finding on a server that answers only after a login."""
    return Finding(Area.SERVERS, Severity.ERROR, server, "needs a login", f"pml upstreams login {quoted(server)}")


def need_of(row: JsonObject) -> Finding | None:
    """Return the most urgent finding on a server, or None if it needs nothing; an error keeps it from answering."""
    server: str = row["server"]
    if row["auth"]["state"] == "login_needed":
        return login_needed(server)
    if row["error"] and row["state"] != INSTALLING:
        hint = str(row.get("hint") or "")
        what = str(row["error"]).removesuffix(f" ({hint})").removeprefix(f"{server}: ")
        return Finding(Area.SERVERS, Severity.ERROR, server, shortened(" ".join(what.split()), MAX_WHAT), hint)
    for count, noun, what in (
        (row.get("held_back"), "definition", "held back"),
        (row.get("flagged"), "accepted definition", "may be an attack"),
    ):
        if count:
            return Finding(Area.TRUST, Severity.WARNING, server, f"{counted(count, noun)} {what}", "pml trust")
    return None


def command_for(need: Finding) -> str:
    """Return the command that fixes a need, or says how."""
    command = need.fix.removeprefix("its messages: ")
    return command if command.startswith("pml ") else "pml doctor"


def clients_in_words(machine: ProcessStatus) -> str:
    """Return the number of clients of this machine's gateway, by transport if it also listens for HTTP."""
    over_stdio, over_http = counted(len(machine["clients"]), "client"), machine["http_clients"]
    return over_stdio if over_http is None else f"{over_stdio} over stdio, {over_http} over HTTP"


def in_words(row: JsonObject) -> str:
    """Return the state of a server in a few words."""
    seen = "never seen" if row["age_seconds"] is None else f"seen {span(row['age_seconds'])} ago"
    tools = counted(row["tools"], "tool")
    if row["state"] == DISABLED:
        return DISABLED
    if row["state"] == NOT_RUNNING:
        return seen if row["age_seconds"] is None else f"{tools}, {seen}"
    state = str(row["state"]).replace("_", " ")
    return f"{state}, {tools}{' stale' if row['stale'] else ''}, {seen}"


async def read_logins(gateway: Gateway) -> None:
    """Look at the stored logins, which other processes change, before a report."""
    for upstream in gateway.pool.upstreams.values():
        if upstream.authorization is not None:
            await upstream.authorization.read()


def gateway_status(gateway: Gateway) -> ProcessStatus:
    """Return the mode of a gateway, the size of its catalog, and its servers, as of no process."""
    settings = gateway.state.settings
    tools: dict[str, list[CatalogTool]] = {}
    for tool in gateway.state.catalog.tools:
        tools.setdefault(tool.upstream_id, []).append(tool)
    return {
        "pid": None,
        "mode": settings.gateway.tools_exposure.value,
        "tools": len(gateway.state.catalog.tools),
        **_storage(gateway),
        "upstreams": [
            _upstream(gateway, upstream, tools.get(upstream.upstream_id, ()))
            for upstream in gateway.pool.upstreams.values()
        ],
    }


def _storage(gateway: Gateway) -> ProcessStatus:
    replicas = gateway.replicas
    if replicas is None:
        return {}
    return {
        "storage": {
            "failure": replicas.server.health.failure or None,
            "failing_seconds": replicas.server.health.failing_seconds,
            "replicas": [_replica(each, replicas) for each in replicas.known],
        }
    }


def _replica(replica: Replica, replicas: Replicas) -> JsonObject:
    own = replicas.own
    return {
        "id": replica.id,
        "is_this": replica.id == own.id,
        "url": replica.url,
        "has_other_clock": replicas.has_other_clock(replica),
        "age_seconds": round(time.time() - replica.started_at, 3),
        "version": replica.version,
        "is_configured_alike": replica.configuration == own.configuration,
        "is_draining": replica.is_draining,
        "stdio_servers": replica.stdio_servers,
    }


def storage_in_words(storage: JsonObject) -> str:
    """Say if the Redis server of replicas answers, and how many share it."""
    if storage["failure"] is None:
        return f"storage: Redis answers, shared by {counted(len(storage['replicas']), 'gateway')}"
    since = span(storage["failing_seconds"])
    return f"storage: Redis has failed for {since} ({storage['failure']}); calls go on without it: pml doctor"


def _upstream(gateway: Gateway, upstream: Upstream, tools: Sequence[CatalogTool]) -> JsonObject:
    listed, failure = upstream.last_listed, upstream.connector.last_error
    offers = gateway.state.catalog.offers
    pins = gateway.trust_gate.servers.get(upstream.upstream_id)
    return {
        "server": upstream.upstream_id,
        "state": upstream.connector.state.value,
        "transport": upstream.definition.resolved_transport.value,
        "era": listed.era if listed else None,
        "tools": len(tools),
        "listed": len(listed.tools) if listed else None,
        **{
            str(kind): sum(1 for each in offers.of_kind(kind) if each.upstream_id == upstream.upstream_id)
            for kind in OfferKind
        },
        "stale": upstream.connector.state == FAILED and bool(tools),
        "latency_seconds": upstream.activity.last_call_seconds or (listed.seconds if listed else None),
        "age_seconds": round(time.time() - at, 3) if (at := gateway.listed_at(upstream)) is not None else None,
        "in_flight": upstream.activity.in_flight,
        "auth": upstream.authorization.status() if upstream.authorization else {"state": "not_needed"},
        "breaker": upstream.breaker.report(),
        "error": KNOWN_SECRETS.masked(str(why), MASK) if (why := upstream.connector.installing or failure) else None,
        "hint": KNOWN_SECRETS.masked(failure.hint, MASK) if failure else None,
        "list_faults": [KNOWN_SECRETS.masked(fault, MASK) for fault in listed.faults] if listed else [],
        "held_back": len(pins.held) if pins is not None else 0,
        "flagged": len(pins.flagged) if pins is not None else 0,
        "repaired": [{"tool": tool.qualified_name, "repairs": list(tool.repairs)} for tool in tools if tool.repairs],
    }


def process_status(identity: str, runtimes: Sequence[Runtime], began: float, transport: str) -> ProcessStatus:
    """Return the status of this process, with all of its gateways as one.

    Each server is there once, as last seen; if the gateways do not all say the same of it, once for each thing they
    say, with the `folders` that are told so, and the `clients` if clients of one folder are told different things.

    Args:
        identity: the configuration file.
        runtimes: the open gateways.
        began: monotonic time of the start.
        transport: `machine`, `stdio` or `http`.
    """
    reports = [_report(runtime) for runtime in runtimes]
    # A gateway that is only kept for the next client has the mode of the last one.
    serving = [report for report in reports if report["transport"] != "machine" or report["clients"]]
    return {
        "pid": os.getpid(),
        "version": __version__,
        "config": identity,
        "transport": transport,
        "url": next((report["url"] for report in reports if report["url"]), None),
        "age_seconds": round(time.monotonic() - began, 3),
        "is_ending": any(runtime.presence.is_ending for runtime in runtimes),
        "gateways": len(runtimes),
        "mode": ", ".join(sorted({report["mode"] for report in serving})) or None,
        "tools": max((report["tools"] for report in reports), default=0),
        "client_count": sum(report["clients"] for report in reports),
        **_worst_storage(reports),
        "upstreams": merged_rows(reports),
    }


def _worst_storage(reports: Sequence[JsonObject]) -> ProcessStatus:
    found = [report["storage"] for report in reports if "storage" in report]
    return {"storage": max(found, key=lambda each: each["failing_seconds"] or 0)} if found else {}


def _report(runtime: Runtime) -> JsonObject:
    presence = runtime.presence
    return {
        **gateway_status(runtime.gateway),
        "folder": str(runtime.gateway.pool.working_directory.folder),
        "transport": presence.transport,
        "url": presence.url,
        "clients": presence.count_clients(),
        "attached": [*presence.attached()],
    }


def merged_rows(reports: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the rows of servers of the gateways of one process, equal ones once."""
    said: dict[str, dict[str, tuple[JsonObject, list[JsonObject]]]] = {}
    for report in reports:
        for row in report["upstreams"]:
            told = json.dumps({key: value for key, value in row.items() if key not in PASSING})
            said.setdefault(row["server"], {}).setdefault(told, (row, []))[1].append(report)
    return [
        {**row, **whose}
        for each in said.values()
        for (row, _), whose in zip(each.values(), _told_apart([told for _, told in each.values()]), strict=True)
    ]


def _told_apart(groups: Sequence[Sequence[JsonObject]]) -> list[JsonObject]:
    """Return the folders or clients of each group of reports that differ; nothing if there is only one group."""
    if len(groups) == 1:
        return [{}]
    folders = [sorted({folder for report in group for folder in _folders(report)}) for group in groups]
    if len({*chain(*folders)}) == sum(map(len, folders)):
        return [{"folders": each} for each in folders]
    clients = [sorted(client for report in group for client in _clients(report)) for group in groups]
    return [{"folders": each, "clients": whose} for each, whose in zip(folders, clients, strict=True)]


def _folders(report: JsonObject) -> list[str]:
    """Those of its clients; without any the folder that it was opened for."""
    return [each["folder"] for each in report.get("attached", ())] or [report.get("folder", "")]


def _clients(report: JsonObject) -> list[str]:
    return [each["client"] for each in report.get("attached", ())] or [
        "clients over HTTP" if report["url"] else "no client"
    ]


async def last_known(settings: Settings, paths: Paths, identity: str) -> ProcessStatus:
    """Return a status of every enabled server from files alone; no server is started or asked."""
    manifest = ManifestFile(paths.manifest_dir, identity, settings.naming.prefix).load()
    pins = PinsFile(paths.pins_dir, identity).load()
    rows = []
    for name, definition in settings.servers.items():
        if definition.enabled:
            known = manifest.entries.get(name)
            is_same = known is not None and known.fingerprint == definition.fingerprint()
            row = _row(name, definition, known if is_same else None, await stored_login(name, definition, paths))
            obstacle = next(iter(hindrances(settings, name)), None)
            if obstacle is not None:
                row |= {"error": f"{name}: {obstacle.what} ({obstacle.fix})", "hint": obstacle.fix}
            own = pins.of(name, identity_of(definition))
            held, flagged = (len(own.held), len(own.flagged)) if own else (0, 0)
            rows.append(row | {"held_back": held, "flagged": flagged})
    mode, tools = settings.gateway.tools_exposure.value, sum(row["tools"] for row in rows)
    return {"pid": None, "mode": mode, "tools": tools, "upstreams": rows}


def with_disabled(reports: Sequence[ProcessStatus], settings: Settings) -> list[ProcessStatus]:
    """Return the reports, the first with the servers that are disabled and that no gateway has."""
    served = {row["server"] for report in reports for row in report["upstreams"]}
    rows = [
        _row(name, definition, None, {"state": "not_needed"}) | {"state": DISABLED}
        for name, definition in settings.servers.items()
        if not definition.enabled and name not in served
    ]
    return [
        {**report, "upstreams": report["upstreams"] if at else [*report["upstreams"], *rows]}
        for at, report in enumerate(reports)
    ]


def _row(name: str, definition: UpstreamDefinition, known: ManifestEntry | None, login: JsonObject) -> JsonObject:
    offers = known.offers if known is not None else Offers()
    return {
        "server": name,
        "state": NOT_RUNNING,
        "transport": definition.resolved_transport.value,
        "era": known.era if known is not None else None,
        "tools": len(known.tools) if known is not None else 0,
        OfferKind.PROMPT.value: len(offers.prompts),
        OfferKind.RESOURCE.value: len(offers.resources),
        OfferKind.TEMPLATE.value: len(offers.templates),
        OfferKind.SKILL.value: len(offers.skills),
        "stale": False,
        "latency_seconds": None,
        "age_seconds": round(time.time() - known.listed_at, 3) if known is not None else None,
        "in_flight": 0,
        "auth": login,
        "breaker": {"state": "closed"},
        "error": None,
        "hint": None,
        "repaired": [],
    }


async def stored_login(name: str, definition: UpstreamDefinition, paths: Paths) -> JsonObject:
    """Return the state of the stored login; without one it is unknown if the server asks for a login."""
    if definition.url is None or definition.has_authorization_header:
        return {"state": "not_needed" if definition.url is None else "headers"}
    if definition.auth is None and not (is_there(paths.auth_dir) and any(paths.auth_dir.iterdir())):
        return {"state": "not_needed"}
    # The OAuth client takes 0.7 s to import.
    from pml_gateway.upstreams.auth.authorization import Authorization
    from pml_gateway.upstreams.auth.logins import LoginStore

    authorization = Authorization(name, definition, LoginStore(paths.auth_dir), lambda _: None)
    await authorization.read()
    return authorization.status()


async def tell_waiting(gateway: Gateway, progress: Progress) -> None:
    """Say again and again which servers have neither listed their tools nor failed, until cancelled."""
    upstreams = gateway.pool.upstreams
    while True:
        waiting = [
            f"{name} (installing)" if upstream.connector.state == INSTALLING else name
            for name, upstream in upstreams.items()
            if not upstream.connector.settled.is_set()
        ]
        names = ", ".join(waiting[:3]) + (" and more" if len(waiting) > 3 else "")
        asked = f"asking {counted(len(upstreams), 'server')} for their tools"
        progress(f"{asked}; waiting for {names}" if waiting else asked)
        await anyio.sleep(PROGRESS_SECONDS)
