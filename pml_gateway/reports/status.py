"""State of every server in a line, and the command that fixes it: of running gateways, or as last seen."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import anyio

from pml_gateway.catalog.manifest import ManifestEntry, ManifestFile
from pml_gateway.catalog.prompts_and_resources import OfferKind
from pml_gateway.config.advice import hindrances
from pml_gateway.config.document import is_there
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.settings import Settings
from pml_gateway.mcp.listing import Offers
from pml_gateway.paths import Paths
from pml_gateway.text import counted, quoted, shortened, span
from pml_gateway.trust.identity import identity_of
from pml_gateway.trust.pins import PinsFile
from pml_gateway.types import JsonObject

if TYPE_CHECKING:
    from pml_gateway.gateway.gateway import Gateway

NOT_RUNNING = "not_running"
"""The state of a server while no gateway runs."""

INSTALLING = "installing"
"""`UpstreamState.INSTALLING`, whose module takes the whole server stack."""

DISABLED = "disabled"
"""The state of a server that the configuration switches off: no gateway has it."""

PASSING = frozenset({"latency_seconds", "age_seconds", "in_flight", "breaker"})
"""Fields of a server that change all the time without a change of its state."""

MAX_WHAT = 600
"""Characters of a fault, which servers write; `pml upstreams` shows all."""


@dataclass(frozen=True, slots=True)
class Need:
    """Problem of a server, and the command that fixes it or says how."""

    what: str
    command: str


def need_of(row: JsonObject) -> Need | None:
    """Return the most urgent need of a server, or None if it has none."""
    server: str = row["server"]
    if row["auth"]["state"] == "login_needed":
        return Need("needs a login", f"pml upstreams login {quoted(server)}")
    if row["error"] and row["state"] != INSTALLING:
        hint = str(row.get("hint") or "")
        what = str(row["error"]).removesuffix(f" ({hint})").removeprefix(f"{server}: ")
        command = hint.removeprefix("its messages: ")
        return Need(
            shortened(" ".join(what.split()), MAX_WHAT), command if command.startswith("pml ") else "pml doctor"
        )
    waiting = row.get("held_back") or 0
    if waiting:
        return Need(f"{counted(waiting, 'definition')} held back", "pml trust")
    flagged = row.get("flagged") or 0
    if flagged:
        return Need(f"{counted(flagged, 'accepted definition')} may be an attack", "pml trust")
    return None


def clients_in_words(machine: JsonObject) -> str:
    """Return the number of clients of this machine's gateway, by transport if it also listens for HTTP."""
    over_stdio, over_http = counted(len(machine["clients"]), "client"), machine.get("http_clients")
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


def by_process(reports: Iterable[JsonObject]) -> list[JsonObject]:
    """Return the reports of gateways, those of one process as one, with all their modes: it serves several folders.

    No mode is told where one of a machine is only kept for the next client, whatever mode the last one had.

    Each of its servers is there once, as last seen; where they do not all say the same of it, once for each thing they
    say, with the `folders` that are told so, and the `clients` where clients of one folder are told different things.
    """
    processes: dict[object, list[JsonObject]] = {}
    alone: list[JsonObject] = []
    for report in reports:
        if report.get("pid") is None:
            alone.append(report)
        else:
            processes.setdefault(report["pid"], []).append(report)
    merged = (_of_process(several) if len(several) > 1 else several[0] for several in processes.values())
    modes = (_modes(several) for several in processes.values())
    return [{**report, "mode": mode} for report, mode in zip(merged, modes, strict=True)] + alone


def _modes(reports: Iterable[JsonObject]) -> str | None:
    serving = [report for report in reports if report.get("transport") != "machine" or report["clients"]]
    return ", ".join(sorted({report["mode"] for report in serving})) or None


def _of_process(reports: Sequence[JsonObject]) -> JsonObject:
    said: dict[str, dict[str, tuple[JsonObject, list[JsonObject]]]] = {}
    for report in reports:
        for row in report["upstreams"]:
            told = json.dumps({key: value for key, value in row.items() if key not in PASSING})
            said.setdefault(row["server"], {}).setdefault(told, (row, []))[1].append(report)
    rows = [
        {**row, **whose}
        for each in said.values()
        for (row, _), whose in zip(each.values(), _told_apart([told for _, told in each.values()]), strict=True)
    ]
    return {
        **max(reports, key=lambda report: report["age_seconds"]),
        "url": next((report["url"] for report in reports if report["url"]), None),
        "tools": max(report["tools"] for report in reports),
        "clients": sum(report["clients"] for report in reports),
        "upstreams": rows,
    }


def _told_apart(groups: Sequence[Sequence[JsonObject]]) -> list[JsonObject]:
    """For whom each of several groups of reports is, which say different things; nothing is to be told of one alone."""
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


async def last_known(settings: Settings, paths: Paths, identity: str) -> JsonObject:
    """Return a status of every enabled server from files alone; no server is started or asked."""
    naming = settings.naming
    manifest = ManifestFile.of(paths.manifest_dir, identity, naming.prefix, naming.max_length).load()
    pins = PinsFile(paths.pins_dir, identity).load()
    rows = []
    for name, definition in settings.servers.items():
        if definition.enabled:
            known = manifest.entries.get(name)
            is_same = known is not None and known.fingerprint == definition.fingerprint()
            row = _row(name, definition, known if is_same else None, await stored_login(name, definition, paths))
            obstacle = next(iter(hindrances(settings, name)), None)
            if obstacle is not None:
                row |= {"error": f"{name}: {obstacle.what} ({obstacle.remedy})", "hint": obstacle.remedy}
            own = pins.of(name, identity_of(definition))
            held, flagged = (len(own.held), len(own.flagged)) if own else (0, 0)
            rows.append(row | {"held_back": held, "flagged": flagged})
    mode, tools = settings.gateway.tools_exposure.value, sum(row["tools"] for row in rows)
    return {"pid": None, "mode": mode, "tools": tools, "upstreams": rows}


def with_disabled(reports: Sequence[JsonObject], settings: Settings) -> list[JsonObject]:
    """Return the reports, the first with the servers that are disabled and that no gateway has."""
    served = {row["server"] for report in reports for row in report.get("upstreams", ())}
    rows = [
        _row(name, definition, None, {"state": "not_needed"}) | {"state": DISABLED}
        for name, definition in settings.servers.items()
        if not definition.enabled and name not in served
    ]
    first = next((at for at, report in enumerate(reports) if "upstreams" in report), None)
    return [
        {**report, "upstreams": [*report["upstreams"], *rows]} if at == first else report
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


Progress = Callable[[str], None]

PROGRESS_SECONDS = 0.2


async def tell_waiting(gateway: Gateway, progress: Progress) -> None:
    """Say again and again which servers have neither listed their tools nor failed, until cancelled."""
    upstreams = gateway.pool.upstreams
    while True:
        waiting = [
            f"{name} (installing)" if upstream.state == INSTALLING else name
            for name, upstream in upstreams.items()
            if not upstream.settled.is_set()
        ]
        names = ", ".join(waiting[:3]) + (" and more" if len(waiting) > 3 else "")
        asked = f"asking {counted(len(upstreams), 'server')} for their tools"
        progress(f"{asked}; waiting for {names}" if waiting else asked)
        await anyio.sleep(PROGRESS_SECONDS)
