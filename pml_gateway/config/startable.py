"""A server of the configuration becomes what keeps it from starting here, with the remedies."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from pml_gateway.config.advice import unreadable_env_files, unresolved
from pml_gateway.config.commands import Obstacle, obstacles
from pml_gateway.config.secrets import resolve
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.settings import Settings
from pml_gateway.errors import SecretError


def hindrances(settings: Settings, server: str, environ: Mapping[str, str]) -> Iterator[Obstacle]:
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
    """What keeps the command of `server` from starting; None where there is no command, or it cannot be known."""
    if not definition.enabled or definition.command is None:
        return None
    try:
        command, folder = resolve(definition.command, environ), resolve(definition.cwd or "", environ)
        path = resolve(definition.env["PATH"], environ) if "PATH" in definition.env else environ.get("PATH")
    except SecretError:
        # Told with the secrets.
        return None
    found = obstacles(command, server=server, folder=folder or None, path=path or os.defpath)
    return [Obstacle(each.what, _for_server(each.remedy, server)) for each in found]


def _for_server(remedy: str, server: str) -> str:
    """The remedy, with what to set where another command was meant."""
    if remedy.startswith("did you mean "):
        meant = remedy.removeprefix("did you mean ").removesuffix("?")
        return f"did you mean {meant}? set servers.{server}.command: {meant}"
    return remedy
