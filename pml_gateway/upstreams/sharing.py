"""Sharing of a server's process: clients share it if it would be started alike for them, without any client's data.

A server depends on the folder that a client works in if its definition says so, or refers to something there. The
process of any other server is started in the home directory, which is the same for all clients.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from pml_gateway.config.commands.command_line import is_simple_line, told_apart
from pml_gateway.config.commands.packages import package_run
from pml_gateway.config.document import is_there
from pml_gateway.config.servers import Transport, UpstreamDefinition
from pml_gateway.config.settings import EffectiveSettings, UpstreamSettings
from pml_gateway.errors import GatewayError
from pml_gateway.mcp.network import CERTIFICATES, Network
from pml_gateway.mcp.transport import process_parameters, resolved_headers
from pml_gateway.processes.confinement.relative_paths import PathReader, is_plainly_relative, is_relative
from pml_gateway.processes.confinement.start import ConfinedClient, ProgramOfFolderError, confinement, search_path
from pml_gateway.secrets.masking import mask_text
from pml_gateway.secrets.references import folder_reference, references, resolve_in
from pml_gateway.text import escaped, shortened
from pml_gateway.working_directory import WorkingDirectory

MAX_SHOWN = 60
"""Maximum characters of an argument in a reason."""

_LOCAL_FIRST = frozenset({"npm", "bun"})
"""Runners that start the package of the current project, if it has that package."""


class SharedBy(StrEnum):
    """The group of clients that shares a process of a server."""

    EVERYBODY = "everybody"
    FOLDER = "folder"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Sharing:
    """The clients that share a server's process, and the reason why no others do; `place` is where it is started."""

    by: SharedBy
    reason: str
    place: WorkingDirectory


@dataclass(frozen=True, slots=True)
class ProcessKey:
    """The key of a server's process: equal for two clients if one process can serve both."""

    upstream_id: str
    digest: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class WantedUpstream:
    """A requested upstream: equal keys mean the same one; `sharing` says who shares it, and where it is started."""

    key: Hashable
    sharing: Sharing
    effective: EffectiveSettings = field(compare=False)


def shared_by(definition: UpstreamDefinition, working_directory: WorkingDirectory) -> Sharing:
    """Return the sharing of a server's process that is started for a client in `working_directory`."""
    if definition.resolved_sessions == "per_client":
        kept = "" if definition.sessions else f"keeps {definition.keeps} from call to call; "
        return Sharing(SharedBy.CLIENT, f"{kept}sessions: per_client", working_directory)
    reason = next(_reasons(definition, working_directory), None)
    if reason is not None:
        return Sharing(SharedBy.FOLDER, reason, working_directory)
    return Sharing(SharedBy.EVERYBODY, "", replace(working_directory, folder=working_directory.home))


def wanted_upstreams(
    definitions: Mapping[str, UpstreamDefinition],
    defaults: UpstreamSettings,
    working_directory: WorkingDirectory,
    *,
    is_shared: bool = True,
) -> dict[str, WantedUpstream]:
    """Return the upstreams that the enabled definitions stand for in a working directory. Reads files.

    If no gateway of another folder shares them (`is_shared` is False), all are started in this one.
    """
    found = {}
    alone = Sharing(SharedBy.EVERYBODY, "", working_directory)
    for upstream_id, definition in definitions.items():
        if definition.enabled:
            sharing = shared_by(definition, working_directory) if is_shared else alone
            key = _key(upstream_id, definition, defaults, working_directory, sharing)
            effective = EffectiveSettings(upstream_id, definition, defaults)
            found[upstream_id] = WantedUpstream(key, sharing, effective)
    return found


def _key(
    upstream_id: str,
    definition: UpstreamDefinition,
    defaults: UpstreamSettings,
    working_directory: WorkingDirectory,
    sharing: Sharing,
) -> ProcessKey:
    """Return everything that the server's process and its treatment depend on. Reads files, such as env files."""
    is_stdio = definition.resolved_transport is Transport.STDIO
    started = {"command", "args", "env", "env_file", "cwd"} if is_stdio else {"url", "headers"}
    rest = definition.model_dump(mode="json", exclude=started | {"tools", "effect_default", "limits"})
    key: dict[str, Any] = {
        "definition": {
            **rest,
            "transport": definition.resolved_transport,
            "sessions": definition.resolved_sessions,
        },
        "defaults": defaults.model_dump(mode="json"),
        "started": _started(upstream_id, definition, sharing.place),
        "folder": None if sharing.by is SharedBy.EVERYBODY else working_directory.folder_identity,
    }
    text = json.dumps(key, sort_keys=True, default=str)
    return ProcessKey(upstream_id, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest())


def _started(upstream_id: str, definition: UpstreamDefinition, place: WorkingDirectory) -> object:
    """Return everything that the server receives, resolved from files: those may change before the next start."""
    try:
        if definition.resolved_transport is Transport.STDIO:
            found = process_parameters(upstream_id, definition, place)
            reached: object = [found.command, found.args, found.env, found.cwd]
        else:
            network = Network.of(place)
            login = [definition.auth.client_id, definition.auth.client_secret] if definition.auth else []
            reached = [
                resolve_in(definition.url or "", place),
                resolved_headers(definition, place),
                [resolve_in(text or "", place) for text in login],
                [network.proxies, network.certificates],
            ]
    except GatewayError as error:
        # The server may become startable later, from a different place for each client.
        return [str(error), definition.model_dump(mode="json"), str(place.folder), dict(place.environ)]
    files = {
        str(place.path(each.name)) for _, text in _texts(definition) for each in references(text) if each.kind == "file"
    }
    if definition.env_file:
        folder = place.path(resolve_in(definition.cwd or "", place))
        files.add(str(replace(place, folder=folder).path(resolve_in(definition.env_file, place))))
    return [reached, sorted(files)]


def _texts(definition: UpstreamDefinition) -> Iterator[tuple[str, str]]:
    """Yield the texts of a definition in which references are resolved, each with its key."""
    for key in ("command", "cwd", "env_file", "url"):
        if text := getattr(definition, key):
            yield key, text
    for section, texts in (("args", definition.args), ("skills", definition.skills)):
        yield from ((f"{section}[{position}]", text) for position, text in enumerate(texts))
    for section, values in (("env", definition.env), ("headers", definition.headers)):
        for name, text in values.items():
            yield f"{section}.{name}", text


def _reasons(definition: UpstreamDefinition, working_directory: WorkingDirectory) -> Iterator[str]:
    """Yield the reasons why the server depends on the folder, the plainest first."""
    if definition.sessions == "per_folder":
        yield "sessions: per_folder"
    for key, text in _texts(definition):
        if (reference := folder_reference(text)) is not None:
            yield f"{key} uses {reference}"
    for folder in definition.skills:
        if is_relative(resolve_in(folder, working_directory)):
            yield f"skills folder {_shown(folder)} is relative"
    if definition.resolved_transport is not Transport.STDIO:
        named = (name for name in CERTIFICATES if is_relative(working_directory.environ.get(name) or "/"))
        yield from (f"{name} is relative" for name in named)
        return
    try:
        yield from _of_process(definition, working_directory)
    except GatewayError:
        # It cannot be started at all, which is reported when that is tried.
        return


def _of_process(definition: UpstreamDefinition, working_directory: WorkingDirectory) -> Iterator[str]:
    def resolved(text: str) -> str:
        return resolve_in(text, working_directory)

    if definition.cwd and is_relative(resolved(definition.cwd)):
        yield f"cwd {_shown(definition.cwd)} is relative"
    if definition.cwd:
        return
    if definition.env_file and is_relative(resolved(definition.env_file)):
        yield f"env_file {_shown(definition.env_file)} is relative"
    command = resolved(definition.command or "")
    if _has_folder(command) and is_relative(command):
        yield f"command {_shown(definition.command or '')} is relative"
    client = ConfinedClient("", definition, working_directory)
    try:
        confined = confinement(client)
    except ProgramOfFolderError as error:
        yield error.reason
        return
    if definition.sessions is None:
        if confined is not None and confined.runs_elsewhere:
            yield from confined.reasons
        else:
            yield from _of_words(definition, command, working_directory, resolved)
    has_own_path = "PATH" in definition.env
    path = resolved(definition.env["PATH"]) if has_own_path else working_directory.environ.get("PATH", "")
    path = path if has_own_path else search_path(path, client)
    if (has_own_path or not _has_folder(command)) and any(
        each and is_relative(each) for each in path.split(os.pathsep)
    ):
        yield "the command may be another one elsewhere: PATH has relative folders"


def _of_words(
    definition: UpstreamDefinition, command: str, working_directory: WorkingDirectory, resolved: Callable[[str], str]
) -> Iterator[str]:
    """Yield the reasons in arguments and variables that look like paths; a setting overrides this guess."""
    words = [resolved(text) for text in definition.args]
    line = told_apart([command, *words])
    run = package_run(command, words)
    paths = PathReader(
        working_directory.folder,
        elsewhere=(working_directory.home,),
        packages=frozenset() if run is None else {*run.packages, *run.runner.split()},
        is_installed=run is not None or bool(line.looks_around),
    )
    for name, text in definition.env.items():
        value = resolved(text)
        # Values for a container are paths inside it, and PATH is checked separately.
        is_elsewhere = line.is_container or name == "PATH"
        if is_plainly_relative(value) or (not is_elsewhere and paths.variable(name, value).may_name_path):
            yield f"env.{name} is relative"
    for at, (written, word, before) in enumerate(zip(definition.args, words, [command, *words], strict=False), 1):
        if line.is_container and at not in line.mounts | line.choosing:
            continue
        if at in line.lines and not is_simple_line(word):
            yield "the line of a shell may depend on the folder"
        if before == "-m" and not is_plainly_relative(word):
            is_path = paths.has_module(word)
        else:
            is_path = paths.argument(word, before).may_name_path
        if is_path:
            yield f"argument {_shown(written)} is relative"
    if run is not None and run.family in _LOCAL_FIRST and _has_own(run.package.name, working_directory):
        yield f"{_shown(run.package.name)} is installed in this folder"
    if line.project:
        yield f"{line.project} works on the project that it is started in"


def _has_own(package: str, working_directory: WorkingDirectory) -> bool:
    above = (working_directory.folder, *working_directory.folder.parents)
    return any(is_there(folder / "node_modules" / package) for folder in above)


def _has_folder(command: str) -> bool:
    return "/" in command or "\\" in command


def _shown(text: str) -> str:
    """Return a text of a definition for messages, on one line and without secrets."""
    return repr(shortened(escaped(mask_text(text)), MAX_SHOWN))
