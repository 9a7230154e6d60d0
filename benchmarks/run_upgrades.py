"""Does an ordinary upgrade of a real server keep every tool, prompt, template and word of the new version?

    python -m benchmarks.run_upgrades [--only WORD] [--json] [--no-save]

Every pair of versions in `tests/data/upgrades` is played twice on a gateway of its own, with the settings that ship. A
server lists what the earlier version lists and a client connects and lists. Then the server either restarts as the
later version, or goes on and announces that its lists changed; the client lists again, and everything must be as the
later version has it. Instructions are told by servers and to clients when they connect, so they count where the server
restarts. Upgrades that are held out are counted, and named without what differs. Exit code 1 if more than `ALLOWED`
pairs lose or hide anything.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import anyio
import anyio.to_thread

from benchmarks.client import AnswerError
from benchmarks.results import save
from benchmarks.upgrades import Upgrade, Version, upgrades
from pml_gateway.catalog.build import legal_name
from pml_gateway.config.settings import NamingSettings
from pml_gateway.log import ROOT, get_logger
from pml_gateway.trust.review import Case, State, cases
from pml_gateway.types import JsonObject
from tests.support.raw import HandshakeSession
from tests.support.scripted_server import ScriptedServer
from tests.support.serving import Serving, serving

Way = Literal["restart", "announcement"]
"""How a server comes to list its later version."""

ALLOWED = 1
PATH = "/full_proxy"
SERVER = "up"
MAX_LENGTH = NamingSettings().max_length

INSTRUCTIONS_TOKENS = 1_000_000
"""Clients are told all of the instructions, so that they can be compared."""

INSTRUCTIONS = "instructions"

Listing = dict[str, Any]
"""What a client is given: definitions by kind and name, and the instructions."""

METHODS = frozenset({"prompts/list", "prompts/get", "resources/list", "resources/templates/list", "resources/read"})


@dataclass(frozen=True, slots=True)
class Reason:
    """A definition that the gateway holds back, with the sentence that its lint names, and why."""

    definition: str
    classes: tuple[str, ...]
    where: str
    text: str
    why: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """One played upgrade: what clients lost, which old words they are shown, and why."""

    upgrade: str
    way: Way
    is_held_out: bool
    lost: tuple[str, ...] = ()
    outdated: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()

    @property
    def holds(self) -> bool:
        """Return True if clients see all of the later version and nothing else."""
        return not self.lost and not self.outdated

    def as_json(self) -> JsonObject:
        """Return the outcome as it is saved: without words where the upgrade is held out."""
        known = {"upgrade": self.upgrade, "way": self.way, "is_held_out": self.is_held_out}
        return known if self.is_held_out else asdict(self)


def main() -> None:
    """Play every upgrade both ways, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="only upgrades whose name contains this; nothing is saved then")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-save", action="store_true", help="print only")
    arguments = parser.parse_args()
    chosen = [each for each in upgrades() if arguments.only in each.name]
    # The gateways would name what is held back of upgrades that are held out.
    get_logger(ROOT).setLevel(logging.CRITICAL)
    outcomes = anyio.run(played, chosen)
    measured = summary(chosen, outcomes)
    print(json.dumps(measured, indent=2) if arguments.json else "\n".join(shown(measured, outcomes)))
    if not arguments.no_save and not arguments.only:
        print(save("upgrades", {"allowed": ALLOWED}, measured, name="upgrades.json"), file=sys.stderr)
    sys.exit(0 if measured["holds"] else 1)


async def played(chosen: Sequence[Upgrade]) -> list[Outcome]:
    """Play upgrades one after the other, each both ways."""
    return [await play(each, way) for each in chosen for way in get_args(Way)]


def summary(chosen: Sequence[Upgrade], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Count pairs; one is harmed if it is in either way."""
    harmed = {each.upgrade: each for each in outcomes if not each.holds}
    held_out = [each for each in chosen if each.is_held_out]
    return {
        "holds": bool(chosen) and len(harmed) <= ALLOWED,
        "servers": len({each.package for each in chosen}),
        "upgrades": len(chosen),
        "harmed": len(harmed),
        "held_out": len(held_out),
        "held_out_harmed": sum(each.name in harmed for each in held_out),
        "outcomes": [each.as_json() for each in outcomes if not each.holds],
    }


def shown(measured: Mapping[str, Any], outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the lines that a person reads."""
    for each in outcomes:
        if each.holds:
            continue
        yield f"{each.upgrade} ({each.way})"
        if each.is_held_out:
            yield "    held out: not shown"
            continue
        yield from (f"    lost      {name}" for name in each.lost)
        yield from (f"    old words {name}" for name in each.outdated)
        for reason in each.reasons:
            yield f"    because   {reason.definition}: {reason.why} ({', '.join(reason.classes)})"
            yield f"              {reason.where}: {reason.text}"
    yield f"upgrades of {measured['servers']} servers that lose or hide anything"
    yield f"all: {measured['harmed']} of {measured['upgrades']}"
    yield f"held out: {measured['held_out_harmed']} of {measured['held_out']}"


async def play(upgrade: Upgrade, way: Way) -> Outcome:
    """Upgrade a server behind a gateway while a client is connected, and compare what the client is given."""
    expected = await fresh(upgrade.after)
    server = _server_of(upgrade.before)
    async with _serving(server) as served, served.handshake(PATH) as session:
        await _listed(session)
        await served.gateway.reading.judge_unread()
        _become(server, upgrade.after)
        if way == "restart":
            server.kill()
        else:
            for kind in ("tools", "prompts", "resources"):
                await server.announce(kind)
        await served.gateway.refresh(30)
        given = await _listed(session)
        if way == "restart":
            async with served.handshake(PATH) as later:
                given |= _instructions(later)
        held = await anyio.to_thread.run_sync(_held, served)
    lost = tuple(name for name in expected if name not in given and (name != INSTRUCTIONS or way == "restart"))
    outdated = tuple(name for name, each in given.items() if each != expected.get(name))
    return Outcome(upgrade.name, way, upgrade.is_held_out, lost, outdated, tuple(_reasons(held)))


async def fresh(version: Version) -> Listing:
    """Return what clients are given of a version by a gateway that never knew another one.

    Raises:
        AnswerError: it does not list every definition in the server's own words.
    """
    async with _serving(_server_of(version)) as served, served.handshake(PATH) as session:
        found = {**await _listed(session), **_instructions(session)}
    names = {f"tool {_qualified(tool['name'])}": tool for tool in version.tools}
    names |= {f"prompt {prompt['name']}": prompt for prompt in version.prompts}
    names |= {f"template {template['uriTemplate']}": template for template in version.templates}
    for name, own in names.items():
        if name not in found or found[name].get("description") != own.get("description"):
            raise AnswerError(f"{version.name} {version.package_version}: {name} is not listed as the server has it")
    if " ".join(version.instructions.split()) not in " ".join(str(found.get(INSTRUCTIONS, "")).split()):
        raise AnswerError(f"{version.name} {version.package_version}: its instructions are not told")
    return found


@asynccontextmanager
async def _serving(server: ScriptedServer) -> AsyncIterator[Serving]:
    sections: dict[str, Any] = {
        "gateway": {"instructions_tokens": INSTRUCTIONS_TOKENS},
        # No model is loaded: nothing here is searched.
        "search": {"ranking": "lexical"},
    }
    with tempfile.TemporaryDirectory(prefix="upgrades-") as folder:
        async with serving(Path(folder), {SERVER: server}, **sections) as served:
            yield served


def _server_of(version: Version) -> ScriptedServer:
    server = ScriptedServer(methods=METHODS)
    _become(server, version)
    return server


def _become(server: ScriptedServer, version: Version) -> None:
    server.name, server.version = version.name, version.version
    server.instructions = version.instructions or None
    server.tools, server.prompts, server.templates = [*version.tools], [*version.prompts], [*version.templates]


async def _listed(session: HandshakeSession) -> Listing:
    def pages(method: str, key: str) -> Iterator[JsonObject]:
        cursor: JsonObject = {}
        while True:
            page = session.result(method, cursor)
            yield from page[key]
            if not page.get("nextCursor"):
                return
            cursor = {"cursor": page["nextCursor"]}

    def ask() -> Listing:
        tools = [each for each in pages("tools/list", "tools") if each["name"].startswith(f"{SERVER}__")]
        return {
            **{f"tool {each['name']}": each for each in tools},
            **{f"prompt {each['name']}": each for each in pages("prompts/list", "prompts")},
            **{
                f"template {each['uriTemplate']}": each
                for each in pages("resources/templates/list", "resourceTemplates")
            },
        }

    return await anyio.to_thread.run_sync(ask)


def _instructions(session: HandshakeSession) -> Listing:
    return {INSTRUCTIONS: session.initialized.get("instructions", "")}


def _held(served: Serving) -> list[Case]:
    known = cases(served.gateway.trust_gate.file.load(), served.gateway.state.settings.servers)
    return [case for case in known if case.state is State.HELD]


def _reasons(held: Sequence[Case]) -> Iterator[Reason]:
    for case in held:
        findings = case.verdict.findings if case.verdict is not None else []
        for each in findings:
            yield Reason(case.source, tuple(map(str, each.classes)), each.where, each.text, each.why)
        if not findings:
            yield Reason(case.source, (), "", "", case.because)


def _qualified(name: str) -> str:
    return legal_name(f"{SERVER}__{name}", (SERVER, name), MAX_LENGTH)


if __name__ == "__main__":
    main()
