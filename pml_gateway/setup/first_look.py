"""A first look at one server, through the process that runs it: its tools, or the reason why it does not answer."""

from __future__ import annotations

import time
from dataclasses import dataclass

import anyio

from pml_gateway.config.commands.packages import package_run
from pml_gateway.config.findings import Area, Finding, Severity
from pml_gateway.config.settings import EffectiveSettings, SearchSettings, Settings
from pml_gateway.gateway.gateway import open_gateway
from pml_gateway.owner.operations import RELOAD, STATUS
from pml_gateway.owner.sockets import ask_gateways
from pml_gateway.paths import Paths
from pml_gateway.reports.status import gateway_status, need_of
from pml_gateway.telemetry.events import Events
from pml_gateway.text import counted, some_of
from pml_gateway.trust.identity import SERVER
from pml_gateway.types import JsonObject, Ranking
from pml_gateway.upstreams.sharing import wanted_upstreams
from pml_gateway.working_directory import WorkingDirectory

POLL_SECONDS = 0.2
TELL_SECONDS = 10.0
TAKEN_OVER_SECONDS = 3.0
"""Time limit in seconds for a gateway that has read the configuration to open the server."""


@dataclass(frozen=True, slots=True)
class FollowingGateways:
    """Process ids of the gateways of this home that serve by the current file, and the errors of others."""

    pids: tuple[int, ...] = ()
    problems: tuple[str, ...] = ()
    other_replicas: int = 0
    """Number of replicas with other homes."""


async def tell_gateways(paths: Paths) -> FollowingGateways:
    """Have every running gateway read its configuration now; they watch it, and this is to know."""
    answers = await ask_gateways(paths, RELOAD, TELL_SECONDS)
    pids = dict.fromkeys(answer["pid"] or 0 for answer in answers.results if answer["gateways"])
    replicas = [each for answer in answers.results if "storage" in answer for each in answer["storage"]["replicas"]]
    own = {each["id"] for each in replicas if each["is_this"]}
    others = {each["id"] for each in replicas if each["url"] is not None} - own
    return FollowingGateways(tuple(pids), tuple(dict.fromkeys(answers.errors)), len(others))


async def first_look(name: str, settings: Settings, paths: Paths, following: FollowingGateways) -> JsonObject:
    """Return the status of a server after a time limit at most, from a running gateway, or else one that starts it."""
    definition = settings.servers[name]
    effective = EffectiveSettings(name, definition, settings.upstreams)
    installs = package_run(definition.command or "", definition.args) is not None
    limit = effective.connect_timeout + 1 + (effective.first_start_timeout if installs else 0)
    found = await _by_gateway(name, paths, limit) if following.pids else None
    found = found or await _by_itself(name, settings, paths, limit)
    return {**found, "waited_seconds": limit}


async def _by_gateway(name: str, paths: Paths, limit: float) -> JsonObject | None:
    """Wait for a running gateway's status of the server; return None if none has it."""
    deadline, taken_over = time.monotonic() + limit, time.monotonic() + TAKEN_OVER_SECONDS
    while True:
        answers = await ask_gateways(paths, STATUS, TELL_SECONDS)
        rows = [row for answer in answers.results for row in answer["upstreams"] if row["server"] == name]
        if not rows and time.monotonic() > taken_over:
            return None
        known = [row for row in rows if first_finding(row).severity is not Severity.NOTE]
        if known or (rows and time.monotonic() > deadline):
            return (known or rows)[0]
        await anyio.sleep(POLL_SECONDS)


def first_finding(row: JsonObject) -> Finding:
    """Return what a new server's status says: that it works, what it needs, or a note while it has not answered."""
    need, listed = need_of(row), row.get("listed")
    if attacks := row.get("attacks"):
        need = Finding(Area.TRUST, Severity.WARNING, row["server"], f"{some_of(attacks)} may be an attack", "pml trust")
    # It is ready before it has listed, and its list is there a moment before the gateway has taken it over.
    if row["state"] == "ready" and listed is not None and (row["tools"] or row["held_back"] or not listed):
        return need or Finding(Area.SERVERS, Severity.OK, row["server"], counted(row["tools"], "tool"))
    if need is not None and need.severity is Severity.ERROR:
        return need
    return Finding(
        Area.SERVERS, Severity.NOTE, row["server"], f"has not answered within {row.get('waited_seconds', 0):g} s"
    )


async def _by_itself(name: str, settings: Settings, paths: Paths, limit: float) -> JsonObject:
    # Words are enough: nobody searches, and a model takes long to load.
    settings = settings.model_copy(update={"search": SearchSettings(ranking=Ranking.LEXICAL)})
    alone = wanted_upstreams({name: settings.servers[name]}, settings.upstreams, WorkingDirectory.here())
    identity = paths.identity(None)
    async with open_gateway(
        settings, paths, identity=identity, connect=False, wanted=alone, events=Events()
    ) as gateway:
        await gateway.refresh(limit)
        await gateway.reading.judge_unread()
        (row,) = gateway_status(gateway)["upstreams"]
        tools = [tool.name for tool in gateway.state.catalog.tools if tool.upstream_id == name]
        pins = gateway.trust_gate.servers.get(name)
        keys = (*pins.held, *pins.flagged) if pins is not None else ()
    attacks = ["what the server says of itself" if key == SERVER else repr(key[1]) for key in keys]
    return {**row, "names": tools, "attacks": attacks}
