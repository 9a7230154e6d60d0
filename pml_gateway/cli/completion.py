"""Shell completion: names from the configuration and the manifest, without starting servers.

Every command imports this for its options, so that what it reads with is imported when a shell completes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pml_gateway.types import ExposureMode, JsonObject

if TYPE_CHECKING:
    from pml_gateway.config.settings import Settings


def tool_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the qualified names of the tools the configured servers listed last."""
    return [name for name, _ in _known_tools(ctx.params.get("config")) if name.startswith(incomplete)]


def tool_schema(config: Path | None, name: str) -> JsonObject | None:
    """Return the input schema of a tool as it was last listed."""
    schema = next((tool.get("inputSchema") for known, tool in _known_tools(config) if known == name), None)
    return schema if isinstance(schema, dict) else None


def server_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the configured servers."""
    return _starting(_settings(ctx).servers, incomplete)


def client_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the configured clients."""
    return _starting(_settings(ctx).clients, incomplete)


def set_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the configured sets and roles."""
    settings = _settings(ctx)
    return _starting([*settings.sets, *settings.roles], incomplete)


def known_client_names(incomplete: str) -> list[str]:
    """Return the clients whose files `pml init` and `pml connect` know."""
    from pml_gateway.clients.known import CLIENT_NAMES

    return _starting(CLIENT_NAMES, incomplete)


def backup_names(incomplete: str) -> list[str]:
    """Return the backups that `pml backups` lists."""
    from pml_gateway.clients.connect import backups_here
    from pml_gateway.errors import GatewayError
    from pml_gateway.paths import Paths

    try:
        return _starting([backup.name for backup in backups_here(Paths.from_environ(), Path.cwd())], incomplete)
    except GatewayError:
        return []


def stored_names(incomplete: str) -> list[str]:
    """Return the names that `pml secrets list` lists."""
    from pml_gateway.errors import GatewayError
    from pml_gateway.secrets.env_file import stored_variables

    try:
        return _starting(stored_variables(), incomplete)
    except GatewayError:
        return []


def workflow_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the workflows of the configuration."""
    return _starting(_settings(ctx).workflows, incomplete)


def setting_names(incomplete: str) -> list[str]:
    """Return the keys of the configuration."""
    from pml_gateway.reports.settings import reference

    return _starting([setting.key for setting in reference()], incomplete)


def mode_names(incomplete: str) -> list[str]:
    """Return the exposure modes."""
    return _starting([mode.value for mode in ExposureMode], incomplete)


def preset_names(incomplete: str) -> list[str]:
    """Return the shipped presets."""
    from pml_gateway.config.presets import PRESET_NAMES

    return _starting(PRESET_NAMES, incomplete)


def topic_names(incomplete: str) -> list[str]:
    """Return the pages of `pml docs`."""
    from pml_gateway.docs import pages

    return _starting([page.topic for page in pages()], incomplete)


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _settings(ctx: typer.Context) -> Settings:
    from pml_gateway.config.load import load_settings
    from pml_gateway.config.settings import Settings
    from pml_gateway.errors import GatewayError

    try:
        return load_settings(config_file=ctx.params.get("config")).settings
    except GatewayError:
        # A shell that completes has no place for errors; the command itself will say them.
        return Settings()


def _known_tools(config: Path | None) -> Iterator[tuple[str, JsonObject]]:
    from pml_gateway.catalog.manifest import ManifestFile
    from pml_gateway.config.load import load_settings
    from pml_gateway.errors import GatewayError
    from pml_gateway.paths import Paths

    try:
        settings = load_settings(config_file=config).settings
    except GatewayError:
        return
    paths = Paths.from_environ()
    manifest = ManifestFile(paths.manifest_dir, paths.identity(config), settings.naming.prefix).load()
    for upstream_id, entry in manifest.entries.items():
        if upstream_id in settings.servers:
            for tool in entry.tools:
                name = manifest.names.get((upstream_id, str(tool.get("name"))))
                if name is not None:
                    yield name, tool
