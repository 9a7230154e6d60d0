"""Checks of settings: those that are valid but will not do what is expected, and servers that cannot start here."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from rapidfuzz import process
from rapidfuzz.distance import OSA

from pml_gateway.config.document import is_there
from pml_gateway.config.findings import Area, Finding, SettingsCase, Severity, from_error, run_checks
from pml_gateway.config.layers import dotted, nodes
from pml_gateway.config.settings import GatewaySection, NamespaceSettings, ReferenceSettings, Settings
from pml_gateway.errors import SecretError
from pml_gateway.secrets.env_file import read_env_file, stored_variables
from pml_gateway.secrets.judgement import keys_of_secrets
from pml_gateway.secrets.masking import without_defaults
from pml_gateway.secrets.references import references, resolve, resolve_in
from pml_gateway.text import counted, did_you_mean, nearest
from pml_gateway.types import MODES, SEPARATORS, ExposureMode
from pml_gateway.working_directory import WorkingDirectory

MAX_NAMED_CLIENTS = 5

INTENT_FIX = (
    "set gateway.intent (pml config --wizard, or in the project's .pml.yaml), clients.<name>.intent, or add ?query= to "
    "the endpoint URL"
)
OF_NAMESPACES = "it belongs to gateway.style: namespaces"

_FOREIGN = re.compile(r"(?<!\$)\$\{(?!env:|file:|cwd\}|workspaceFolder\})(?P<name>[A-Za-z_]\w*)[^{}]*\}")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
SHELLS = frozenset({"sh", "bash", "zsh", "dash", "fish", "cmd", "powershell", "pwsh"})

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


def intent_sources(case: SettingsCase) -> Iterator[Finding]:
    """Warn if a mode selects tools by intent and nothing in the configuration can supply one."""
    settings, gateway = case.settings, case.settings.gateway
    if gateway.intent or gateway.follow == "searches":
        return
    clients_with_intent = [name for name, client in settings.clients.items() if client.intent]
    if gateway.selects_by_intent(gateway.tools_exposure) and not clients_with_intent:
        what = (
            f"gateway.tools_exposure is {gateway.tools_exposure} and no intent is configured: a client that sends none "
            f"sees only {_without_intent(gateway, gateway.tools_exposure)}"
        )
        yield Finding(Area.INTENT, Severity.WARNING, "", what, INTENT_FIX)
    blind = [
        name
        for name, client in settings.clients.items()
        if client.mode is not None and gateway.selects_by_intent(client.mode) and not client.intent
    ]
    if blind:
        more = f" and {len(blind) - MAX_NAMED_CLIENTS} more" if len(blind) > MAX_NAMED_CLIENTS else ""
        names = f"{', '.join(blind[:MAX_NAMED_CLIENTS])}{more}"
        what = f"clients {names} pin a mode that selects tools by intent and have none"
        yield Finding(Area.INTENT, Severity.WARNING, "", what, "set clients.<name>.intent or gateway.intent")


def without_effect(case: SettingsCase) -> Iterator[Finding]:
    """Find settings that the gateway does not act on."""
    settings, gateway = case.settings, case.settings.gateway
    if gateway.legacy_tools and gateway.style != "namespaces":
        yield _warning("", "gateway.legacy_tools has no effect", OF_NAMESPACES)
    if gateway.namespaces != NamespaceSettings() and gateway.style != "namespaces":
        yield _warning("", "gateway.namespaces has no effect", OF_NAMESPACES)
    if settings.references != ReferenceSettings() and "read_result" not in gateway.meta_tools:
        yield _warning(
            "",
            "references has no effect on how results are answered: without read_result in gateway.meta_tools, clients "
            "could not read what is stored, and get results whole",
        )
    modes = {gateway.tools_exposure, *(client.mode for client in settings.clients.values())}
    changed = [mode for mode, facts in MODES.items() if facts.has_namespaces]
    if gateway.style == "namespaces" and modes.isdisjoint(changed):
        what = f"gateway.style: namespaces changes {' and '.join(changed)}, not {gateway.tools_exposure}"
        yield _warning("", what)
    for name, server in settings.servers.items():
        idle, other = (("headers",), "url") if server.command else (("args", "env", "env_file", "cwd"), "command")
        for key in filter(partial(getattr, server), idle):
            yield _warning(f"servers.{name}.{key}", "has no effect", f"it belongs to a server with a {other}")


def confusable_ids(case: SettingsCase) -> Iterator[Finding]:
    """Find ids of servers that cannot be told from another's, or from the name of a tool, where a tool is named."""
    servers = tuple(case.settings.servers)
    alike: dict[str, str] = {}
    for server in servers:
        separator = next((each for each in SEPARATORS if each in server), None)
        starts = [other for other in servers if server.startswith(tuple(f"{other}{each}" for each in SEPARATORS))]
        if starts:
            what = f"names that begin with it begin with {starts[0]} as well, and count as its own"
            fix = f"tools of {starts[0]} get other names: rename one of both"
            yield _warning(f"servers.{server}", what, fix)
        elif separator is not None:
            what = f"{separator!r} stands between a server's id and the name of a tool"
            fix = f"write the id without it, for example {_plain_id(server)}"
            yield _warning(f"servers.{server}", what, fix)
        first = alike.setdefault(_NOT_IN_NAMES.sub("_", server).casefold(), server)
        if first != server:
            what = f"names of tools write it as they write servers.{first}, whose names they are then"
            yield _warning(f"servers.{server}", what, "rename one of both")


def _warning(subject: str, what: str, fix: str = "") -> Finding:
    return Finding(Area.CONFIGURATION, Severity.WARNING, subject, what, fix)


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


def unresolved_references(case: SettingsCase) -> Iterator[Finding]:
    """Find references of enabled servers, clients and the store that stand for nothing, and files without variables.

    Those of clients and the store prevent the gateway from starting.
    """
    is_whole = True
    for key, text in _reference_texts(case.settings):
        if key == "storage.key":
            # Refused with the other settings of the storage, and with its own remedy: a key has no default.
            continue
        is_of_server = key.startswith("servers.")
        try:
            resolve(text, case.environ)
        except SecretError as error:
            is_whole = is_whole and not is_of_server
            yield from_error(Area.SECRETS if is_of_server else Area.CONFIGURATION, error, key)
    for key, reason in _unreadable_env_files(case):
        is_whole = False
        yield Finding(Area.SECRETS, Severity.ERROR, key, reason, f"correct {key}, or the file's owner and mode")
    if is_whole:
        yield Finding(Area.SECRETS, Severity.OK, "", "every reference of the servers has a value")


def foreign_variables(case: SettingsCase) -> Iterator[Finding]:
    """Find variables in the spelling of a client, which the gateway passes on as they are written."""
    settings = case.settings
    shells = {name for name, item in settings.servers.items() if Path(item.command or "").stem in SHELLS}
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
            what = f"{_without_default(found[0])} is passed on as it is written"
            yield _warning(key, what, "the gateway fills in ${env:NAME}, ${file:PATH} and ${cwd} only")


def _without_default(variable: str) -> str:
    """Return the variable without a default, which may be a credential."""
    name, colon, _ = variable.partition(":-")
    return f"{name}:-...}}" if colon else variable


def _unreadable_env_files(case: SettingsCase) -> Iterator[tuple[str, str]]:
    """Yield the keys of files of variables (`envFile`) of enabled servers that cannot be read, and why."""
    here = WorkingDirectory.here(case.environ)
    for name, definition in case.settings.servers.items():
        if not definition.enabled or not definition.env_file:
            continue
        try:
            folder = here.path(resolve_in(definition.cwd or "", here))
            read_env_file(
                replace(here, folder=folder).path(resolve_in(definition.env_file, here)),
                without_defaults(str(Path(definition.cwd or "") / definition.env_file)),
            )
        except SecretError as error:
            yield f"servers.{name}.env_file", str(error)


def literal_secrets(case: SettingsCase) -> Iterator[Finding]:
    """Find variables, headers, arguments and URLs that hold a credential instead of a reference to it."""
    keys = [
        f"servers.{server}.{key}"
        for server, definition in case.settings.servers.items()
        for key in keys_of_secrets(definition.model_dump(mode="json", exclude_defaults=True))
    ]
    url = case.settings.storage.url or ""
    user = url.rpartition("@")[0]
    if user and "${" not in user:
        keys.append("storage.url")
    for key in keys:
        fix = "move it out of the file and write ${env:NAME} or ${file:PATH}"
        yield _warning("", f"{key} holds a literal secret", fix)


def variable_users(settings: Settings) -> dict[str, list[str]]:
    """Return every variable that the settings refer to, with the keys that do so."""
    users: dict[str, list[str]] = {}
    given = settings.model_dump(mode="json", exclude_defaults=True)
    if settings.storage.url is not None:
        given["storage"]["key"] = settings.storage.key
    for path, text in nodes(given):
        for reference in references(text) if isinstance(text, str) else ():
            if reference.kind == "env":
                keys = users.setdefault(reference.name, [])
                keys += [dotted(path)] if dotted(path) not in keys else []
    return users


def overridden(case: SettingsCase) -> Iterator[Finding]:
    """Find variables that the environment sets to another value than the secrets file."""
    stored = stored_variables(case.environ)
    for name, keys in variable_users(case.settings).items():
        if stored.get(name) and (case.environ.get(name) or stored[name]) != stored[name]:
            what = f"the environment has another value than secrets.env, which is used for {', '.join(keys)}"
            fix = f"unset {name}, or if its value is the right one, store it: pml secrets set {name}"
            yield Finding(Area.SECRETS, Severity.WARNING, name, what, fix)


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
        if section.key is not None:
            yield f"clients.{client}.key", section.key
    yield "storage.results", settings.storage.results
    if settings.storage.url is not None:
        yield "storage.url", settings.storage.url
        yield "storage.key", settings.storage.key or ""
    if settings.http.metrics and settings.http.metrics_key is not None:
        yield "http.metrics_key", settings.http.metrics_key
    if settings.telemetry.otlp_endpoint:
        yield "telemetry.otlp_endpoint", settings.telemetry.otlp_endpoint


def obstacles(
    command: str, *, server: str, folder: str | None, path: str | None, environ: Mapping[str, str] = os.environ
) -> Iterator[Finding]:
    """Return why the `command` of a server cannot start in `folder`, with `path` as its search path.

    Both are shown as they are written, with their references.

    Raises:
        SecretError: a reference cannot be resolved.
    """
    shown, shown_folder = without_defaults(command), without_defaults(folder or "")
    here = WorkingDirectory.here(environ)
    command, folder = resolve_in(command, here), resolve_in(folder or "", here)
    in_folder = here.path(folder)
    obstacle = partial(Finding, Area.COMMANDS, Severity.ERROR, server)
    if folder and not (is_there(in_folder) and in_folder.is_dir()):
        what = f"working directory {shown_folder} does not exist"
        yield obstacle(what, f"create it, or correct servers.{server}.cwd")
    is_path = "/" in command or "\\" in command
    candidate = str(replace(here, folder=in_folder).path(command)) if is_path else command
    if shutil.which(candidate, path=path) is not None:
        return
    if is_path and is_there(Path(candidate)) and Path(candidate).is_file():
        written = candidate if shown == command and shown_folder == folder else shown
        yield obstacle(f"command {shown} is not executable", f"chmod +x {written}")
        return
    name = Path(command).name
    first, rest = (*command.split(maxsplit=1), "")[:2]
    if rest and shutil.which(first, path=path) is not None:
        remedy = f"write servers.{server}.command: {shown.split()[0]}, and the rest to servers.{server}.args"
    elif name in _SOURCES:
        remedy = _SOURCES[name]
    elif near := _nearest(name, path):
        remedy = f"{did_you_mean(near)} set servers.{server}.command: {near[0]}"
    else:
        remedy = f"install it, or correct servers.{server}.command"
    yield obstacle(f"command {shown} is not found", remedy)


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


def missing_commands(case: SettingsCase) -> Iterator[Finding]:
    """Find commands of enabled servers that are not there; unresolved references in them are told with the secrets."""
    looked_at = found = 0
    for name, definition in case.settings.servers.items():
        if not definition.enabled or definition.command is None:
            continue
        with suppress(SecretError):
            path, folder = case.environ.get("PATH"), definition.cwd
            if "PATH" in definition.env:
                path = resolve_in(definition.env["PATH"], WorkingDirectory.here(case.environ))
            search = path or os.defpath
            missing = [*obstacles(definition.command, server=name, folder=folder, path=search, environ=case.environ)]
            yield from missing
            looked_at, found = looked_at + 1, found + len(missing)
    if looked_at and not found:
        yield Finding(Area.COMMANDS, Severity.OK, "", f"{counted(looked_at, 'command')} of stdio servers found")


def hindrances(settings: Settings, server: str, environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """Return everything that keeps `server` from starting through the gateway."""
    alone = settings.model_copy(update={"servers": {server: settings.servers[server]}, "clients": {}})
    found = run_checks(START_CHECKS, SettingsCase(alone, environ))
    return [each for each in found if each.severity is Severity.ERROR and each.area is not Area.CONFIGURATION]


LOAD_CHECKS = (without_effect, confusable_ids, intent_sources)
"""Checks of every load of the settings, whose findings are its warnings."""

START_CHECKS = (unresolved_references, missing_commands)
"""Checks of what servers need in order to start, as far as that is known without starting them."""

SETTINGS_CHECKS = (unresolved_references, literal_secrets, foreign_variables, overridden)
"""Checks of settings that have been loaded, whatever is installed on this machine."""
