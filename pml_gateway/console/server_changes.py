"""Changes of servers and their tools, as `pml enable`, `pml add` and the other commands make them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import anyio.to_thread

from pml_gateway.clients.importing import ImportPlan
from pml_gateway.clients.paste import MAX_CHARACTERS, pasted
from pml_gateway.config.document import parse
from pml_gateway.config.edits.rename import mentions
from pml_gateway.config.layers import dotted
from pml_gateway.config.load import load_user_settings
from pml_gateway.config.masked import masked_start
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.console.change import ChangeRequest, MadeChange, PlannedChange, planned_edit
from pml_gateway.console.forms import FormField
from pml_gateway.errors import GatewayError, UsageError
from pml_gateway.owner.operations import RECONNECT
from pml_gateway.owner.sockets import ask_gateways
from pml_gateway.setup.change import ConfigurationChange
from pml_gateway.setup.servers import (
    OVERRIDES,
    addition,
    last_manifest,
    overriding,
    removal,
    switched_servers,
    switching,
    unused_without,
)
from pml_gateway.text import counted, some_of

RECONNECT_SECONDS = 5.0

REPLACE = "replace servers of the same names"

ADD_FIELDS = {
    "block": FormField(
        "Block of any client, command line, or URL", longest=MAX_CHARACTERS, is_long=True, is_secret=True
    ),
    "name": FormField("Name, if it has none of its own", is_required=False),
    "over": FormField("Servers that are there", choices=("", REPLACE), is_required=False),
}

OVERRIDE_FIELDS = {
    "name": FormField(),
    "effect": FormField("Effect", choices=("", "read", "write", "destructive"), is_required=False),
    "title": FormField("Title", is_required=False),
    "description": FormField("Description", longest=10_000, is_required=False, is_long=True),
}

_URL = re.compile(r"https?://\S+")


async def enable(request: ChangeRequest) -> PlannedChange:
    """Plan to enable a server or a tool."""
    return await _switch(request, is_on=True)


async def disable(request: ChangeRequest) -> PlannedChange:
    """Plan to disable a server or a tool."""
    return await _switch(request, is_on=False)


async def _switch(request: ChangeRequest, *, is_on: bool) -> PlannedChange:
    """Plan to enable or disable a server, or one tool of it as SERVER:TOOL."""
    paths, name = request.source.paths, request.values["name"]

    def planned() -> tuple[ConfigurationChange, list[str]]:
        settings = load_user_settings(paths)
        named = switched_servers(settings, [name], last_manifest(paths, settings))
        unlisted = [each.server for each in named if not each.is_listed]
        unchecked = [f"No gateway has listed the tools of {each} yet, so the name is not checked." for each in unlisted]
        return switching(paths, settings, named, is_on=is_on), unchecked

    change, unchecked = await anyio.to_thread.run_sync(planned)
    word = "Enable" if is_on else "Disable"
    return await planned_edit(
        change,
        f"{word} {name}?",
        f"{name} is {word.lower()}d.",
        button=word,
        notes=unchecked,
        already=f"{name} is {word.lower()}d already.",
    )


async def override(request: ChangeRequest) -> PlannedChange:
    """Plan to say something of a tool in place of its server."""
    paths, name = request.source.paths, request.values["name"]
    # Browsers end lines of a form with both characters.
    values = {key: request.values[key].replace("\r\n", "\n").strip() for key in OVERRIDES}

    def planned() -> ConfigurationChange:
        settings = load_user_settings(paths)
        [switched] = switched_servers(settings, [name], last_manifest(paths, settings))
        if switched.tool is None:
            raise UsageError(f"{name} is a server", hint="name one of its tools")
        return overriding(paths, switched, values)

    change = await anyio.to_thread.run_sync(planned)
    return await planned_edit(
        change, f"Change what clients are told of {name}?", f"{name} is changed.", button="Change"
    )


async def add(request: ChangeRequest) -> PlannedChange:
    """Plan to add servers that are pasted, as `pml add` takes them."""
    paths, values = request.source.paths, request.values
    name, text = values["name"].strip() or None, values["block"].strip()
    if _URL.fullmatch(text):
        if name is None:
            raise UsageError("the server has no name", hint="give it one")
        text = json.dumps({"mcpServers": {name: {"url": text}}})

    def planned() -> tuple[ImportPlan, ConfigurationChange]:
        # Relative paths of pasted text are not of the folder that the console was started in.
        found = addition(paths, pasted(text, name), Path.home(), later={}, replaces=bool(values["over"]))
        return found.plan, found.change

    plan, change = await anyio.to_thread.run_sync(planned)
    skipped = [each for each in plan.servers if each.outcome == "skipped"]
    if not plan.additions and skipped:
        raise UsageError("; ".join(skipped[0].problems) or "it cannot be added", hint="correct the block")
    names = some_of(list(plan.additions) or [each.name for each in plan.servers])
    return await planned_edit(
        change,
        f"Add {names}?",
        f"{names} added.",
        button="Add",
        notes=list(_said_of(plan)),
        already=f"{names}: there already.",
    )


def _said_of(plan: ImportPlan) -> Iterator[str]:
    """Yield what an addition starts, moves and lacks."""
    for server in plan.servers:
        label = server.name or server.entry_name
        if server.outcome == "added" and server.definition is not None:
            definition = UpstreamDefinition.model_validate(server.definition)
            verb = "connects to" if definition.url else "runs, with your rights,"
            yield f"{label} {verb} {masked_start(definition)}"
        else:
            yield f"{label} is left out: {server.outcome}"
        yield from (f"{label}: {each}" for each in (*server.problems, *server.notes))
    for secret in plan.secrets:
        place = "is stored where only you can read it" if secret.is_stored else "is set already"
        yield f"the credential in {', '.join(secret.used_by)} becomes ${{env:{secret.variable}}}, which {place}"
    for missing in plan.missing:
        yield f"{', '.join(missing.used_by)} needs {missing.variable}: pml secrets set {missing.variable}"


async def remove(request: ChangeRequest) -> PlannedChange:
    """Plan to remove a server."""
    paths, name = request.source.paths, request.values["name"]

    def planned() -> tuple[ConfigurationChange, list[str], list[str]]:
        settings = load_user_settings(paths)
        change = removal(paths, settings, [name])
        left = mentions(parse(change.preview().after, "user", paths.config_file).values, name)
        return change, list(map(dotted, left)), unused_without(settings, [name])

    change, left, unused = await anyio.to_thread.run_sync(planned)
    notes = ["What was accepted of it is forgotten. Its login and its stored secrets stay."]
    if left:
        notes.append(f"It is still named in {', '.join(left)}.")
    if unused:
        notes.append(f"No other server reads {', '.join(unused)}: pml secrets remove {' '.join(unused)}")
    return await planned_edit(change, f"Remove {name}?", f"{name} is removed.", button="Remove", notes=notes)


async def restart(request: ChangeRequest) -> PlannedChange:
    """Plan to connect to a server anew; a process of ours is started anew for that."""
    paths, name = request.source.paths, request.values["name"]

    async def make() -> MadeChange:
        answers = await ask_gateways(paths, RECONNECT, RECONNECT_SECONDS, {"server": name})
        if not answers.results:
            raise GatewayError(f"no gateway that runs has {name!r}", hint="; ".join(answers.errors) or "pml up")
        told = len({answer["pid"] for answer in answers.results})
        more = "" if told == 1 else f" in {counted(told, 'gateway')}"
        return MadeChange(f"{name} starts again{more}.")

    return PlannedChange(
        f"Restart {name}?", make, "Restart", notes=["Calls that it works on now fail; later ones wait for it."]
    )


async def log_in(request: ChangeRequest) -> PlannedChange:
    """Plan to log in to a server with the browser of this machine."""
    source, logins, name = request.source, request.logins, request.values["name"]
    if logins is None:
        raise UsageError(
            "a login comes back to the machine of the gateway", hint=f"run there: pml upstreams login {name}"
        )

    async def make() -> MadeChange:
        settings = (await anyio.to_thread.run_sync(source.load)).settings
        address = await logins.start(name, settings, source.paths)
        if not address:
            return MadeChange(f"Logged in to {name}.")
        return MadeChange(f"{name} waits for your login, for five minutes:", address=address)

    return PlannedChange(f"Log in to {name}?", make, "Log in", asks=False)
