"""Which clients can share a server's process: those for whom it would be started alike, with nothing of one of them.

A server depends on the folder that a client works in where its definition says so, or names what lies there. The
process of one that does not is started in the home directory, which is the same for all.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import PurePath
from typing import Any

from pml_gateway.config.document import is_there
from pml_gateway.config.packages import CONTAINERS, NO_PACKAGE, behind_env, package_of, package_run, shell_line
from pml_gateway.config.servers import Transport, UpstreamDefinition
from pml_gateway.config.settings import UpstreamSettings
from pml_gateway.errors import GatewayError
from pml_gateway.mcp.network import CERTIFICATES, Network
from pml_gateway.mcp.transport import process_parameters, resolved_headers
from pml_gateway.secrets.judgement import ENV_FLAGS
from pml_gateway.secrets.masking import mask_text
from pml_gateway.secrets.references import folder_reference, references, resolve_in
from pml_gateway.text import escaped, shortened
from pml_gateway.upstreams.relative_paths import (
    argument_names_one,
    is_plainly_relative,
    is_relative,
    module_is_there,
    variable_names_one,
)
from pml_gateway.workplace import Workplace

MAX_SHOWN = 60
"""Characters of an argument in a reason."""


class SharedBy(StrEnum):
    """Who has a process of a server together."""

    EVERYBODY = "everybody"
    FOLDER = "folder"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Sharing:
    """Who shares a server's process, and why no more do; `place` is where it is started for one of them."""

    by: SharedBy
    reason: str
    place: Workplace


@dataclass(frozen=True, slots=True)
class ProcessKey:
    """Equal for two clients where one process of a server can serve both."""

    upstream_id: str
    digest: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class WantedUpstream:
    """Which upstream is meant: equal keys, the same one; and who shares it, with the place where it is started."""

    key: Hashable
    sharing: Sharing


def shared_by(definition: UpstreamDefinition, workplace: Workplace) -> Sharing:
    """Who shares the process of a server that is started for a client at `workplace`."""
    if definition.resolved_sessions == "per_client":
        kept = "" if definition.sessions else f"keeps {definition.keeps} from call to call; "
        return Sharing(SharedBy.CLIENT, f"{kept}sessions: per_client", workplace)
    reason = next(_reasons(definition, workplace), None)
    if reason is not None:
        return Sharing(SharedBy.FOLDER, reason, workplace)
    return Sharing(SharedBy.EVERYBODY, "", replace(workplace, folder=workplace.home))


def wanted_upstreams(
    definitions: Mapping[str, UpstreamDefinition], defaults: UpstreamSettings, workplace: Workplace
) -> dict[str, WantedUpstream]:
    """Which upstreams the enabled ones among these definitions mean at a workplace. Reads files."""
    found = {}
    for upstream_id, definition in definitions.items():
        if definition.enabled:
            sharing = shared_by(definition, workplace)
            found[upstream_id] = WantedUpstream(_key(upstream_id, definition, defaults, workplace, sharing), sharing)
    return found


def _key(
    upstream_id: str,
    definition: UpstreamDefinition,
    defaults: UpstreamSettings,
    workplace: Workplace,
    sharing: Sharing,
) -> ProcessKey:
    """What a server's process and the gateway's way with it depend on. Reads files: those that hold its variables."""
    is_stdio = definition.resolved_transport is Transport.STDIO
    started = {"command", "args", "env", "env_file", "cwd"} if is_stdio else {"url", "headers"}
    rest = definition.model_dump(mode="json", exclude=started | ({"formerly"} if is_stdio else set()))
    key: dict[str, Any] = {
        "definition": {
            **rest,
            "transport": definition.resolved_transport,
            "sessions": definition.resolved_sessions,
        },
        "defaults": defaults.model_dump(mode="json"),
        "started": _started(upstream_id, definition, sharing.place),
        "folder": None if sharing.by is SharedBy.EVERYBODY else workplace.folder_identity,
    }
    text = json.dumps(key, sort_keys=True, default=str)
    return ProcessKey(upstream_id, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest())


def _started(upstream_id: str, definition: UpstreamDefinition, place: Workplace) -> object:
    """All that reaches the server, and the files that it comes from: they may say something else at the next start."""
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
        # Who cannot be served now may be soon, each from a place of its own.
        return [str(error), definition.model_dump(mode="json"), str(place.folder), dict(place.environ)]
    files = {
        str(place.path(each.name)) for _, text in _texts(definition) for each in references(text) if each.kind == "file"
    }
    if definition.env_file:
        folder = place.path(resolve_in(definition.cwd or "", place))
        files.add(str(replace(place, folder=folder).path(resolve_in(definition.env_file, place))))
    return [reached, sorted(files)]


def _texts(definition: UpstreamDefinition) -> Iterator[tuple[str, str]]:
    """Every text of a definition in which references count, with its key."""
    for key in ("command", "cwd", "env_file", "url"):
        if text := getattr(definition, key):
            yield key, text
    for position, text in enumerate(definition.args):
        yield f"args[{position}]", text
    for section, values in (("env", definition.env), ("headers", definition.headers)):
        for name, text in values.items():
            yield f"{section}.{name}", text


def _reasons(definition: UpstreamDefinition, workplace: Workplace) -> Iterator[str]:
    """Why the folder matters, the plainest reason first."""
    if definition.sessions == "per_folder":
        yield "sessions: per_folder"
    for key, text in _texts(definition):
        if (reference := folder_reference(text)) is not None:
            yield f"{key} uses {reference}"
    if definition.resolved_transport is not Transport.STDIO:
        named = (name for name in CERTIFICATES if is_relative(workplace.environ.get(name) or "/"))
        yield from (f"{name} is relative" for name in named)
        return
    try:
        yield from _of_process(definition, workplace)
    except GatewayError:
        # It cannot be started at all, which is told when that is tried.
        return


def _of_process(definition: UpstreamDefinition, workplace: Workplace) -> Iterator[str]:
    def resolved(text: str) -> str:
        return resolve_in(text, workplace)

    if definition.cwd and is_relative(resolved(definition.cwd)):
        yield f"cwd {_shown(definition.cwd)} is relative"
    if definition.cwd:
        return
    if definition.env_file and is_relative(resolved(definition.env_file)):
        yield f"env_file {_shown(definition.env_file)} is relative"
    command = resolved(definition.command or "")
    if _has_folder(command) and is_relative(command):
        yield f"command {_shown(definition.command or '')} is relative"
    if definition.sessions is None:
        yield from _of_words(definition, command, workplace, resolved)
    path = resolved(definition.env["PATH"]) if "PATH" in definition.env else workplace.environ.get("PATH", "")
    has_own_path = "PATH" in definition.env
    if (has_own_path or not _has_folder(command)) and any(
        each and is_relative(each) for each in path.split(os.pathsep)
    ):
        yield "the command may be another one elsewhere: PATH has relative folders"


def _of_words(
    definition: UpstreamDefinition, command: str, workplace: Workplace, resolved: Callable[[str], str]
) -> Iterator[str]:
    """What arguments and variables say of paths; a setting overrules it, as words can be mistaken for such."""
    words = [resolved(text) for text in definition.args]
    run = package_run(command, words)
    is_container = run is not None and run.family in CONTAINERS
    is_installed = run is not None or ("-m" in words and PurePath(command).name.startswith("py"))
    for name, text in definition.env.items():
        value = resolved(text)
        # What a container is given means something inside of it, and PATH is looked at by itself.
        is_elsewhere = is_container or name == "PATH"
        if is_plainly_relative(value) or (
            not is_elsewhere and variable_names_one(name, value, workplace, is_installed=is_installed)
        ):
            yield f"env.{name} is relative"
    own = words[: words.index(run.packages[0])] if is_container and run and run.packages[0] in words else words
    line = shell_line(command, own)
    if line is not None and (run is None or any(_MORE_THAN_A_COMMAND.search(each) for each in line)):
        yield "the line of a shell may depend on the folder"
    no_paths = _PROJECT_COMMANDS.get(PurePath(command).name, frozenset())
    no_paths |= frozenset() if run is None else {*run.packages, *run.runner.split()}
    for written, word, before in zip(definition.args, own, ["", *own], strict=False):
        if is_container and (before in ENV_FLAGS or word.startswith("--env=")):
            continue
        if before == "-m" and not is_plainly_relative(word):
            is_path = module_is_there(word, workplace)
        else:
            is_path = argument_names_one(word, workplace, no_paths, is_installed=is_installed)
        if is_path:
            yield f"argument {_shown(written)} is relative"
    started = behind_env(command, words)
    package = package_of(*started)
    if (
        run is not None
        and run.family in _LOCAL_FIRST
        and package is not NO_PACKAGE
        and _has_own(package.name, workplace)
    ):
        yield f"{_shown(package.name)} is installed in this folder"
    if (program := _of_project(*started)) is not None:
        yield f"{program} works on the project that it is started in"


_MORE_THAN_A_COMMAND = re.compile(r"[;&|`\n]|\$\(")
"""In the line of a shell: other commands, or their output."""

_LOCAL_FIRST = frozenset({"npm", "bun"})
"""Runners that start the package of the project they run in, where it has that."""

_PROJECT_COMMANDS: dict[str, frozenset[str]] = {
    "uv": frozenset({"run"}),
    "poetry": frozenset({"run"}),
    "pdm": frozenset({"run"}),
    "hatch": frozenset({"run"}),
    "pipenv": frozenset({"run"}),
    "pixi": frozenset({"run"}),
    "npm": frozenset({"run", "run-script", "start"}),
    "pnpm": frozenset({"run", "start", "exec"}),
    "yarn": frozenset({"run", "start"}),
    "bun": frozenset({"run", "start"}),
    "deno": frozenset({"task"}),
    "cargo": frozenset({"run"}),
    "go": frozenset({"run"}),
    "dotnet": frozenset({"run"}),
    "bundle": frozenset({"exec"}),
    "docker": frozenset({"compose"}),
    "podman": frozenset({"compose"}),
    "docker-compose": frozenset(),
    "make": frozenset(),
    "just": frozenset(),
}
"""Commands that look for a project where they run; with no word named, whatever they are told."""

_PROJECT_OPTIONS = ("--project", "--directory", "--prefix", "--cwd", "--dir", "--manifest-path", "-C", "-f")
"""Options by which such a command is told where the project is; a relative one counts as an argument."""


def _of_project(command: str, words: list[str]) -> str | None:
    """What of a command line looks for a project in its folder."""
    name = PurePath(command).name
    wanted = _PROJECT_COMMANDS.get(name)
    if wanted is None or any(word.partition("=")[0] in _PROJECT_OPTIONS for word in words):
        return None
    if not wanted:
        return name
    first = next((word for word in words if not word.startswith("-")), "")
    return f"{name} {first}" if first in wanted else None


def _has_own(package: str, workplace: Workplace) -> bool:
    above = (workplace.folder, *workplace.folder.parents)
    return any(is_there(folder / "node_modules" / package) for folder in above)


def _has_folder(command: str) -> bool:
    return "/" in command or "\\" in command


def _shown(text: str) -> str:
    """A text of a definition for people, on one line and without what may be secret."""
    return repr(shortened(escaped(mask_text(text)), MAX_SHOWN))
