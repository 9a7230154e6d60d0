"""Opening the transport in a server's definition: a child process, streamable HTTP or SSE."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import anyio
import httpx2
from mcp.client.stdio import StdioServerParameters

from pml_gateway.config.commands.packages import package_run
from pml_gateway.config.document import is_there
from pml_gateway.config.servers import Transport, UpstreamDefinition
from pml_gateway.environment import child_environment
from pml_gateway.errors import GatewayError, SecretError, UpstreamUnusableError
from pml_gateway.log import get_logger
from pml_gateway.mcp.bodies import ACCEPTED_ENCODING
from pml_gateway.mcp.http import ConnectionFacts
from pml_gateway.mcp.network import Network
from pml_gateway.mcp.sdk import TransportStreams, http_streams
from pml_gateway.mcp.sse import sse_streams
from pml_gateway.processes import package_faults
from pml_gateway.processes.child_log import last_words, log_path, log_size
from pml_gateway.processes.children import Children, open_children
from pml_gateway.processes.confinement.loader_variables import is_loader_variable
from pml_gateway.processes.confinement.start import ConfinedClient, confinement, found_command, is_foreign, search_path
from pml_gateway.processes.package_faults import unknown_package
from pml_gateway.processes.stdio import open_child
from pml_gateway.secrets.env_file import read_env_file
from pml_gateway.secrets.masking import without_defaults
from pml_gateway.secrets.references import resolve_in
from pml_gateway.text import escaped
from pml_gateway.working_directory import WorkingDirectory

logger = get_logger(__name__)

_NOTIFICATION = b'{"jsonrpc":"2.0","method":"notifications/'
"""Beginning of a notification, in the SDK's format."""


class OpenStreams(Protocol):
    """A function that opens one upstream's transport; tests substitute in-memory servers."""

    def __call__(
        self,
        upstream_id: str,
        definition: UpstreamDefinition,
        *,
        working_directory: WorkingDirectory,
        logs_dir: Path,
        connect_timeout: float,
        http: ConnectionFacts,
    ) -> AbstractAsyncContextManager[TransportStreams]: ...


@asynccontextmanager
async def open_streams(
    upstream_id: str,
    definition: UpstreamDefinition,
    *,
    working_directory: WorkingDirectory,
    logs_dir: Path,
    connect_timeout: float,
    http: ConnectionFacts,
    children: Children | None = None,
) -> AsyncIterator[TransportStreams]:
    """Open the transport; secrets are resolved here, in `working_directory`, and live no longer than the connection.

    Messages larger than `http.max_bytes` are refused. Processes are registered with `children`, which one gateway
    shares.

    Raises:
        SecretError: a reference in the definition cannot be resolved.
        UpstreamUnusableError: the command or the working directory does not exist.
    """
    match definition.resolved_transport:
        case Transport.STDIO:
            async with _open_stdio(upstream_id, definition, working_directory, logs_dir, http, children) as streams:
                yield streams
        case Transport.HTTP:
            async with (
                _http_client(definition, working_directory, connect_timeout, http) as client,
                http_streams(resolve_in(definition.url or "", working_directory), client, http) as streams,
            ):
                yield streams
        case Transport.SSE:
            async with (
                _http_client(definition, working_directory, connect_timeout, http) as client,
                sse_streams(resolve_in(definition.url or "", working_directory), client, http) as streams,
            ):
                yield streams
        case Transport.SKILLS:
            async with _own_skills(definition, working_directory) as streams:
                yield streams


@asynccontextmanager
async def _own_skills(
    definition: UpstreamDefinition, working_directory: WorkingDirectory
) -> AsyncIterator[TransportStreams]:
    from mcp.shared.memory import create_client_server_memory_streams

    # Importing the SDK's server takes a moment, which gateways without skills never need.
    from pml_gateway.skills.server import SkillServer

    server = SkillServer(skill_folders(definition, working_directory))
    async with create_client_server_memory_streams() as (streams, served), anyio.create_task_group() as tasks:
        tasks.start_soon(server.run, *served)
        yield streams
        tasks.cancel_scope.cancel()


def skill_folders(definition: UpstreamDefinition, working_directory: WorkingDirectory) -> list[Path]:
    """Return the folders of skills in a definition, as they are meant in a working directory.

    Raises:
        SecretError: a reference in one of them cannot be resolved.
    """
    return [working_directory.path(resolve_in(folder, working_directory)) for folder in definition.skills]


@asynccontextmanager
async def _open_stdio(
    upstream_id: str,
    definition: UpstreamDefinition,
    working_directory: WorkingDirectory,
    logs_dir: Path,
    http: ConnectionFacts,
    given: Children | None,
) -> AsyncIterator[TransportStreams]:
    parameters = process_parameters(upstream_id, definition, working_directory)
    log_file = log_path(logs_dir, upstream_id)
    begun = log_size(log_file)
    run = package_run(parameters.command, parameters.args)
    # A package runner may fetch a new version at any start.
    install_until = http.install.until if http.install is not None else None if run is None else 0.0

    def on_start(pid: int) -> None:
        http.pid = pid
        if http.install is not None:
            http.install.began(pid)

    try:
        with nullcontext(given) if given is not None else open_children() as children:
            async with open_child(
                upstream_id,
                parameters,
                log_file=log_file,
                max_bytes=http.max_bytes,
                children=children,
                install_until=install_until,
                on_start=on_start,
                on_unread=partial(setattr, http, "was_read", False),
            ) as streams:
                yield streams
    except (FileNotFoundError, NotADirectoryError, PermissionError) as exc:
        raise UpstreamUnusableError(
            f"{upstream_id}: command {without_defaults(definition.command or '')!r} cannot be started: {exc.strerror}",
            hint=f"install it or correct servers.{upstream_id}.command",
        ) from exc
    # However the connection ended, the server's last output may explain it better.
    except Exception as exc:
        if run is None:
            raise
        said = last_words(log_file, begun)
        fault = package_faults.broken(upstream_id, said, run)
        if fault is None and http.install is not None and not http.install.is_over:
            fault = unknown_package(upstream_id, said, run)
        if fault is None:
            raise
        raise fault from exc


def process_parameters(
    upstream_id: str, definition: UpstreamDefinition, working_directory: WorkingDirectory
) -> StdioServerParameters:
    """Return how to start a stdio server's process from a working directory, with secrets and command resolved.

    Raises:
        SecretError: a reference in the definition cannot be resolved.
        UpstreamUnusableError: the working directory does not exist, or the client's folder would choose the program.
    """
    client = ConfinedClient(upstream_id, definition, working_directory)
    base = _usable(working_directory.folder)
    if definition.cwd:
        base = client.base
        if not (is_there(base) and base.is_dir()):
            raise UpstreamUnusableError(
                f"{upstream_id}: working directory {without_defaults(definition.cwd)!r} does not exist",
                hint=f"correct servers.{upstream_id}.cwd",
            )
    confined = confinement(client)
    command = resolve_in(definition.command or "", working_directory)
    if confined is None:
        args = [resolve_in(argument, working_directory) for argument in definition.args]
        configured = {key: resolve_in(value, working_directory) for key, value in definition.env.items()}
    else:
        args, configured = [*confined.args], confined.env
    is_elsewhere = confined is not None and confined.runs_elsewhere and client.begins_in_folder
    cwd = _usable(working_directory.home) if is_elsewhere else base
    if definition.env_file:
        configured = _of_env_file(client, base) | configured
    env = child_environment(working_directory.environ, configured)
    if "PATH" in env and "PATH" not in configured:
        env["PATH"] = search_path(env["PATH"], client)
    return StdioServerParameters(
        command=found_command(command, replace(working_directory, folder=cwd), env.get("PATH", os.defpath)),
        args=args,
        env=env,
        cwd=cwd,
    )


def _of_env_file(client: ConfinedClient, base: Path) -> dict[str, str]:
    """Return the variables of a server's file; those that affect which code runs only if its project is approved."""
    definition, working_directory = client.definition, client.working_directory
    file = replace(working_directory, folder=base).path(resolve_in(definition.env_file or "", working_directory))
    written = without_defaults(str(Path(definition.cwd or "") / (definition.env_file or "")))
    foreign = is_foreign(file, client)
    found = read_env_file(file, written, is_own=foreign)
    refused = sorted(name for name in found if foreign and is_loader_variable(name))
    if refused:
        logger.warning(
            "%s: %s of %s may decide which code runs and is not used: its project is not approved (write it into "
            "servers.%s.env, or run pml trust project)",
            client.upstream_id,
            ", ".join(escaped(name) for name in refused),
            written,
            client.upstream_id,
        )
    return {name: value for name, value in found.items() if name not in refused}


def _usable(folder: Path) -> Path:
    """Return a client's folder, or `/` if it is gone or inaccessible, so that servers can start anyway."""
    return folder if is_there(folder) and folder.is_dir() and os.access(folder, os.X_OK) else Path(folder.anchor)


def surroundings(upstream_id: str, definition: UpstreamDefinition, working_directory: WorkingDirectory) -> str:
    """Return a hash of what a start depends on: the location of the command, and the values of references."""
    try:
        if definition.resolved_transport is Transport.STDIO:
            parameters = process_parameters(upstream_id, definition, working_directory)
            found = f"{shutil.which(parameters.command, path='')} {parameters!r}"
        else:
            url, headers = definition.url or "", resolved_headers(definition, working_directory)
            found = f"{resolve_in(url, working_directory)} {headers!r}"
    except GatewayError as error:
        found = str(error)
    return hashlib.sha256(found.encode("utf-8", "replace")).hexdigest()


def _http_client(
    definition: UpstreamDefinition, working_directory: WorkingDirectory, connect_timeout: float, http: ConnectionFacts
) -> httpx2.AsyncClient:
    async def limit(request: httpx2.Request) -> None:
        # The SDK sends these without a deadline; a server that never answers would block the rest.
        if request.method == "DELETE" or _is_notification(request):
            request.extensions["timeout"] = httpx2.Timeout(connect_timeout).as_dict()

    return httpx2.AsyncClient(
        headers={"accept-encoding": ACCEPTED_ENCODING, **resolved_headers(definition, working_directory)},
        auth=http.authorization.for_httpx() if http.authorization is not None else None,
        # Reading has no timeout: every request has a deadline, and the notification stream stays open.
        timeout=httpx2.Timeout(connect_timeout, read=None),
        event_hooks={"request": [limit], "response": [http.note]},
        **Network.of(working_directory).client_options(),
    )


def _is_notification(request: httpx2.Request) -> bool:
    try:
        return request.content.startswith(_NOTIFICATION)
    except httpx2.RequestNotRead:
        # A redirected request; the original one was limited.
        return False


def resolved_headers(definition: UpstreamDefinition, working_directory: WorkingDirectory) -> dict[str, str]:
    """Return the configured headers with their secrets resolved in `working_directory`.

    Raises:
        SecretError: a value has characters that headers may not have; HTTP libraries would quote the value in their
            error.
    """
    headers = {key: resolve_in(value, working_directory) for key, value in definition.headers.items()}
    for key, value in headers.items():
        if not value.isprintable() or not value.isascii():
            raise SecretError(
                f"headers.{key}: the value has characters that no HTTP header may have",
                hint="often a line break at the end of a file or variable",
            )
    return headers
