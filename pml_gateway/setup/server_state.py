"""State kept under a server's id: lists, pins, its login, usage and examples; it moves with a renamed server.

It is copied before the configuration says the new id and dropped under the old one after that. So it is whole under the
id that the configuration says whenever the two are interrupted, and doing both again completes them.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import get_args

from pml_gateway.activity.database import rename_server
from pml_gateway.catalog.build import Prefix
from pml_gateway.catalog.manifest import ManifestFile
from pml_gateway.config.servers import AuthDefinition, UpstreamDefinition
from pml_gateway.config.settings import Settings
from pml_gateway.errors import ConfigurationError, GatewayError, SecretError
from pml_gateway.example_queries.library import ExampleLibrary
from pml_gateway.paths import Paths
from pml_gateway.secrets.references import resolve_in
from pml_gateway.storage.shared_documents import open_documents
from pml_gateway.trust.pins_file import PinsFile
from pml_gateway.upstreams.auth.logins import LoginStore
from pml_gateway.working_directory import WorkingDirectory


def copy_state(paths: Paths, settings: Settings, before: str, now: str) -> None:
    """Keep all that is known of the server `before` under the id `now` as well.

    Raises:
        GatewayError: something cannot be written.
    """
    identity = paths.identity(None)
    login, copy = (_login(paths, settings.servers[before], each) for each in (before, now))
    try:
        for prefix in get_args(Prefix):
            ManifestFile(paths.manifest_dir, identity, prefix).copy(before, now)
        documents = open_documents(settings.storage)
        pins = PinsFile(paths.pins_dir, identity, documents=documents)
        if documents is not None or pins.path.exists():
            pins.change(lambda known: known.copied(before, now))
        if login is not None and copy is not None:
            LoginStore(paths.auth_dir).copy(login, copy)
    except OSError as error:
        raise ConfigurationError(
            f"what is known of {before} cannot be written under {paths.home} ({error.strerror or error})",
            hint="check its owner, then run it again",
        ) from error
    _move_records(paths, before, now)


def drop_state(paths: Paths, definition: UpstreamDefinition, before: str, now: str) -> None:
    """Forget what is still kept under the id `before`; records of calls that ran meanwhile go to `now`."""
    pins = PinsFile(paths.pins_dir, paths.identity(None))
    # What stays counts for nothing: the id has no server any more.
    with suppress(GatewayError):
        _move_records(paths, before, now)
    with suppress(OSError):
        if pins.path.exists():
            pins.change(lambda known: known.without_server(before))
        if (login := _login(paths, definition, before)) is not None:
            LoginStore(paths.auth_dir).delete(login)


def _move_records(paths: Paths, before: str, now: str) -> None:
    rename_server(paths.activity_file, paths.identity(None), before, now)
    ExampleLibrary(paths.example_queries_dir).rename_server(before, now)


def _login(paths: Paths, definition: UpstreamDefinition, upstream_id: str) -> Path | None:
    """Return where the login of a server is kept; None if its URL cannot be known here."""
    if definition.url is None:
        return None
    try:
        url = resolve_in(definition.url, WorkingDirectory.here())
    except SecretError:
        return None
    return LoginStore(paths.auth_dir).path(upstream_id, url, definition.auth or AuthDefinition())
