"""Warnings about settings that are valid but will not do what is expected, and servers that cannot start here."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rapidfuzz import process
from rapidfuzz.distance import OSA

from pml_gateway.config.document import is_there
from pml_gateway.config.layers import dotted, nodes
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.settings import GatewaySection, NamespaceSettings, ReferenceSettings, Settings
from pml_gateway.errors import SecretError
from pml_gateway.secrets.env_file import read_env_file, stored_variables
from pml_gateway.secrets.judgement import keys_of_secrets
from pml_gateway.secrets.masking import without_defaults
from pml_gateway.secrets.references import references, resolve, resolve_in
from pml_gateway.text import did_you_mean, nearest
from pml_gateway.types import MODES, SEPARATORS, ExposureMode
from pml_gateway.working_directory import WorkingDirectory

MAX_NAMED_CLIENTS = 5

_FOREIGN = re.compile(r"(?<!\$)\$\{(?!env:|file:|cwd\}|workspaceFolder\})(?P<name>[A-Za-z_]\w*)[^{}]*\}")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
SHELLS = frozenset({"sh", "bash", "zsh", "dash", "fish", "cmd", "powershell", "pwsh"})


def intent_sources(settings: Settings) -> tuple[str, ...]:
    """Warn if a mode selects tools by intent and nothing in the configuration can supply one."""
    gateway = settings.gateway
    if gateway.intent:
        return ()
    warnings = []
    clients_with_intent = [name for name, client in settings.clients.items() if client.intent]
    if gateway.selects_by_intent(gateway.tools_exposure) and not clients_with_intent:
        warnings.append(
            f"gateway.tools_exposure is {gateway.tools_exposure} and no intent is configured: a client that sends none "
            f"sees only {_without_intent(gateway, gateway.tools_exposure)}; set gateway.intent (for example in the "
            "project's .pml.yaml), clients.<name>.intent, or add ?query= to the endpoint URL"
        )
    blind = [
        name
        for name, client in settings.clients.items()
        if client.mode is not None and gateway.selects_by_intent(client.mode) and not client.intent
    ]
    if blind:
        more = f" and {len(blind) - MAX_NAMED_CLIENTS} more" if len(blind) > MAX_NAMED_CLIENTS else ""
        warnings.append(
            f"clients {', '.join(blind[:MAX_NAMED_CLIENTS])}{more} pin a mode that selects tools by intent and have "
            "none; set clients.<name>.intent or gateway.intent"
        )
    return tuple(warnings)


def without_effect(settings: Settings) -> tuple[str, ...]:
    """Return the settings of this tree that the gateway does not act on."""
    return tuple(_without_effect(settings))


def _without_effect(settings: Settings) -> Iterator[str]:
    gateway = settings.gateway
    if gateway.legacy_tools and gateway.style != "namespaces":
        yield "gateway.legacy_tools has no effect; it belongs to gateway.style: namespaces"
    if gateway.namespaces != NamespaceSettings() and gateway.style != "namespaces":
        yield "gateway.namespaces has no effect; it belongs to gateway.style: namespaces"
    if settings.references != ReferenceSettings() and "read_result" not in gateway.meta_tools:
        yield (
            "references has no effect on how results are answered: without read_result in gateway.meta_tools, clients "
            "could not read what is stored, and get results whole"
        )
    modes = {gateway.tools_exposure, *(client.mode for client in settings.clients.values())}
    changed = [mode for mode, facts in MODES.items() if facts.has_namespaces]
    if gateway.style == "namespaces" and modes.isdisjoint(changed):
        yield f"gateway.style: namespaces changes {' and '.join(changed)}, not {gateway.tools_exposure}"


def confusable_ids(settings: Settings) -> tuple[str, ...]:
    """Ids of servers that cannot be told from another's, or from the name of a tool, where a tool is named."""
    return tuple(_confusable_ids(tuple(settings.servers)))


def _confusable_ids(servers: tuple[str, ...]) -> Iterator[str]:
    alike: dict[str, str] = {}
    for server in servers:
        separator = next((each for each in SEPARATORS if each in server), None)
        starts = [other for other in servers if server.startswith(tuple(f"{other}{each}" for each in SEPARATORS))]
        if starts:
            yield (
                f"servers.{server}: names that begin with it begin with {starts[0]} as well, and count as its own; "
                f"tools of {starts[0]} get other names: rename one of both"
            )
        elif separator is not None:
            yield (
                f"servers.{server}: {separator!r} stands between a server's id and the name of a tool; "
                f"write the id without it, for example {_plain_id(server)}"
            )
        first = alike.setdefault(_NOT_IN_NAMES.sub("_", server).casefold(), server)
        if first != server:
            yield (
                f"servers.{server}: names of tools write it as they write servers.{first}, whose names they are then; "
                "rename one of both"
            )


def _plain_id(server: str) -> str:
    return re.sub(r"[:/._]+", "-", server)


def _without_intent(gateway: GatewaySection, mode: ExposureMode) -> str:
    if mode is ExposureMode.SEMANTIC:
        return "the meta-tools"
    parts = [
        *(["the meta-tools"] if gateway.hybrid.expose_meta_tools else []),
        *(["the whitelisted tools"] if gateway.hybrid.whitelisted_tools else []),
        *(["the most used tools"] if gateway.hybrid.fallback == "usage" else []),
    ]
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:]))) or "an empty list"


def unresolved_references(settings: Settings, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the references of enabled servers and of clients that have no value now."""
    return tuple(f"{key}: {error}" for key, error in unresolved(settings, environ))


def unresolved(settings: Settings, environ: Mapping[str, str] = os.environ) -> Iterator[tuple[str, SecretError]]:
    """Yield the key of each reference that stands for nothing right now, and why."""
    for key, text in _reference_texts(settings):
        try:
            resolve(text, environ)
        except SecretError as exc:
            yield key, exc


def foreign_variables(settings: Settings) -> tuple[str, ...]:
    """Variables in the spelling of a client, which the gateway passes on as they are written."""
    shells = {name for name, item in settings.servers.items() if Path(item.command or "").stem in SHELLS}
    warnings = []
    for key, text in _reference_texts(settings):
        section, server, *_ = key.split(".", 2)
        found = _FOREIGN.search(text)
        # What a shell is given, it expands itself, as programs do with their own variables.
        is_own = (
            found is not None
            and key.startswith(f"servers.{server}.args")
            and found["name"] in settings.servers[server].env
        )
        if found is not None and section == "servers" and server not in shells and not is_own:
            warnings.append(
                f"{key}: {_without_default(found[0])} is passed on as it is written; the gateway fills in "
                "${env:NAME}, ${file:PATH} and ${cwd} only"
            )
    return tuple(warnings)


def _without_default(variable: str) -> str:
    """Return the variable without a default, which may be a credential."""
    name, colon, _ = variable.partition(":-")
    return f"{name}:-...}}" if colon else variable


def unreadable_env_files(settings: Settings, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Files of variables (`envFile`) of enabled servers that cannot be read."""
    warnings, here = [], WorkingDirectory.here(environ)
    for name, definition in settings.servers.items():
        if not definition.enabled or not definition.env_file:
            continue
        try:
            folder = here.path(resolve_in(definition.cwd or "", here))
            read_env_file(
                replace(here, folder=folder).path(resolve_in(definition.env_file, here)),
                without_defaults(str(Path(definition.cwd or "") / definition.env_file)),
            )
        except SecretError as exc:
            warnings.append(f"servers.{name}.env_file: {exc}")
    return tuple(warnings)


def literal_secrets(settings: Settings) -> tuple[str, ...]:
    """Variables, headers, arguments and URLs that hold a credential instead of a reference to it."""
    keys = [
        f"servers.{server}.{key}"
        for server, definition in settings.servers.items()
        for key in keys_of_secrets(definition.model_dump(mode="json", exclude_defaults=True))
    ]
    store = settings.references.store
    if store.startswith("redis") and "@" in store and "${" not in store:
        keys.append("references.store")
    return tuple(
        f"{key} holds a literal secret; move it out of the file and write ${{env:NAME}} or ${{file:PATH}}"
        for key in keys
    )


def variable_users(settings: Settings) -> dict[str, list[str]]:
    """Return every variable that the settings refer to, with the keys that do so."""
    users: dict[str, list[str]] = {}
    for path, text in nodes(settings.model_dump(mode="json", exclude_defaults=True)):
        for reference in references(text) if isinstance(text, str) else ():
            if reference.kind == "env":
                keys = users.setdefault(reference.name, [])
                keys += [dotted(path)] if dotted(path) not in keys else []
    return users


def overridden(settings: Settings, environ: Mapping[str, str] = os.environ) -> Iterator[tuple[str, list[str]]]:
    """Yield variables, with their users, that the environment sets to another value than the secrets file."""
    stored = stored_variables(environ)
    for name, keys in variable_users(settings).items():
        if stored.get(name) and (environ.get(name) or stored[name]) != stored[name]:
            yield name, keys


def _server_variables(settings: Settings) -> Iterator[tuple[str, str]]:
    for server, definition in settings.servers.items():
        for section, values in (("env", definition.env), ("headers", definition.headers)):
            for name, text in values.items():
                yield f"servers.{server}.{section}.{name}", text
        if definition.auth is not None and definition.auth.client_secret is not None:
            yield f"servers.{server}.auth.client_secret", definition.auth.client_secret


def _reference_texts(settings: Settings) -> Iterator[tuple[str, str]]:
    enabled = {name: definition for name, definition in settings.servers.items() if definition.enabled}
    yield from _server_variables(settings.model_copy(update={"servers": enabled}))
    for server, definition in enabled.items():
        for field, value in (("command", definition.command), ("url", definition.url), ("cwd", definition.cwd)):
            if value is not None:
                yield f"servers.{server}.{field}", value
        for position, text in enumerate(definition.args):
            yield f"servers.{server}.args[{position}]", text
    for client, section in settings.clients.items():
        yield f"clients.{client}.key", section.key
    yield "references.store", settings.references.store


RUNNERS = ("npx", "node", "npm", "pnpm", "bunx", "deno", "uvx", "uv", "python", "python3", "pipx", "docker", "podman")

MAX_COMMANDS = 20_000
"""Commands that are compared with a mistyped one."""

RUNNER_LIKENESS = 0.7

SHORTEST_MISTYPED = 5
LETTERS_A_SLIP = 10
"""Among the thousands of commands installed one is always like another: any of them is only proposed for a name of
this length at least that begins alike, with one slip for each so many letters begun."""

_NODE = "install Node.js, which brings it: https://nodejs.org"
_UV = "install uv, which brings it: https://docs.astral.sh/uv"
_SOURCES: Mapping[str, str] = {
    "npx": _NODE,
    "npm": _NODE,
    "node": _NODE,
    "pnpm": "install it with: npm install -g pnpm",
    "bunx": "install Bun, which brings it: https://bun.sh",
    "deno": "install Deno: https://deno.com",
    "uvx": _UV,
    "uv": _UV,
    "pipx": "install it with: python3 -m pip install --user pipx",
    "docker": "install Docker: https://docs.docker.com/get-docker",
    "podman": "install Podman: https://podman.io",
}
"""Sources of the usual runners."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Reason why a command cannot start, the remedy, and the command that was probably meant."""

    what: str
    remedy: str
    meant: str = ""

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}" if self.remedy else self.what


def obstacles(
    command: str, *, server: str, folder: str | None, path: str | None, environ: Mapping[str, str] = os.environ
) -> Iterator[Obstacle]:
    """Return why the `command` of a server cannot start in `folder`, with `path` as its search path.

    Both are shown as they are written, with their references.

    Raises:
        SecretError: a reference cannot be resolved.
    """
    shown, shown_folder = without_defaults(command), without_defaults(folder or "")
    here = WorkingDirectory.here(environ)
    command, folder = resolve_in(command, here), resolve_in(folder or "", here)
    in_folder = here.path(folder)
    if folder and not (is_there(in_folder) and in_folder.is_dir()):
        yield Obstacle(
            f"working directory {shown_folder} does not exist", f"create it, or correct servers.{server}.cwd"
        )
    is_path = "/" in command or "\\" in command
    candidate = str(replace(here, folder=in_folder).path(command)) if is_path else command
    if shutil.which(candidate, path=path) is not None:
        return
    if is_path and is_there(Path(candidate)) and Path(candidate).is_file():
        written = candidate if shown == command and shown_folder == folder else shown
        yield Obstacle(f"command {shown} is not executable", f"chmod +x {written}")
        return
    first, rest = (*command.split(maxsplit=1), "")[:2]
    if rest and shutil.which(first, path=path) is not None:
        remedy = f"write servers.{server}.command: {shown.split()[0]}, and the rest to servers.{server}.args"
        yield Obstacle(f"command {shown} is not found", remedy)
        return
    name = Path(command).name
    if name in _SOURCES:
        yield Obstacle(f"command {shown} is not found", _SOURCES[name])
        return
    near = _nearest(name, path)
    remedy = did_you_mean(near) or f"install it, or correct servers.{server}.command"
    yield Obstacle(f"command {shown} is not found", remedy, "".join(near))


def _nearest(name: str, path: str | None) -> list[str]:
    """Return the installed command that `name` was probably meant to be: one of the usual runners, else any."""
    runners = [runner for runner in RUNNERS if shutil.which(runner, path=path)]
    meant = nearest(name, runners, likeness=RUNNER_LIKENESS)
    if meant or len(name) < SHORTEST_MISTYPED:
        return meant
    slips = -(-len(name) // LETTERS_A_SLIP)
    alike = (each for each in _installed(path) if each[:1] == name[:1])
    found = process.extractOne(name, alike, scorer=OSA.distance, score_cutoff=slips)
    return [found[0]] if found else []


def _installed(path: str | None) -> list[str]:
    found: dict[str, None] = {}
    for folder in (path or "").split(os.pathsep):
        try:
            entries = list(os.scandir(folder)) if folder else []
        except OSError:
            continue
        found.update((entry.name, None) for entry in entries[: MAX_COMMANDS - len(found)])
    return list(found)


def hindrances(settings: Settings, server: str, environ: Mapping[str, str] = os.environ) -> Iterator[Obstacle]:
    """Everything that keeps `server` from starting through the gateway: secrets, files of variables, its command."""
    definition = settings.servers[server]
    alone = settings.model_copy(update={"servers": {server: definition}, "clients": {}})
    for key, error in unresolved(alone, environ):
        if key.startswith("servers."):
            yield Obstacle(error.message, error.hint)
    for warning in unreadable_env_files(alone, environ):
        yield Obstacle(warning.partition(": ")[2], f"correct servers.{server}.env_file, or the file's owner and mode")
    yield from command_obstacles(server, definition, environ) or ()


def command_obstacles(server: str, definition: UpstreamDefinition, environ: Mapping[str, str]) -> list[Obstacle] | None:
    """Return why the command of `server` cannot start, or None if it can, or that is unknown."""
    if not definition.enabled or definition.command is None:
        return None
    try:
        path = (
            resolve_in(definition.env["PATH"], WorkingDirectory.here(environ))
            if "PATH" in definition.env
            else environ.get("PATH")
        )
        found = list(
            obstacles(
                definition.command, server=server, folder=definition.cwd, path=path or os.defpath, environ=environ
            )
        )
    except SecretError:
        # Told with the secrets.
        return None
    return [
        replace(each, remedy=f"{each.remedy} set servers.{server}.command: {each.meant}") if each.meant else each
        for each in found
    ]
