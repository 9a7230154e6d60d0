"""Opens the transport that a server's definition names: a child process, streamable HTTP or SSE."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import httpx2
from mcp.client.stdio import StdioServerParameters

from pml_gateway.config.document import is_there
from pml_gateway.config.packages import package_run
from pml_gateway.config.servers import Transport, UpstreamDefinition
from pml_gateway.errors import GatewayError, SecretError, UpstreamUnusableError
from pml_gateway.mcp.bodies import ACCEPTED_ENCODING, bound
from pml_gateway.mcp.http import SERVER_FAILED, SESSION_HEADER, HttpSide
from pml_gateway.mcp.network import Network
from pml_gateway.mcp.sdk import TransportStreams, http_streams
from pml_gateway.processes import npx_cache
from pml_gateway.processes.child_log import last_words, log_path, log_size
from pml_gateway.processes.children import Children, open_children
from pml_gateway.processes.stdio import open_child
from pml_gateway.secrets.env_file import read_env_file
from pml_gateway.secrets.masking import without_defaults
from pml_gateway.secrets.references import resolve_in
from pml_gateway.workplace import Workplace

ALLOWED = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "TERM",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "TEMP",
        "TMP",
        # proxies and certificate authorities, in both spellings that programs read
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "no_proxy",
        "all_proxy",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "NODE_EXTRA_CA_CERTS",
        # without these, processes do not start on Windows
        "SYSTEMROOT",
        "SYSTEMDRIVE",
        "APPDATA",
        "LOCALAPPDATA",
        "USERPROFILE",
        "PATHEXT",
        "COMSPEC",
    }
)


def child_environment(environ: Mapping[str, str], configured: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child process; nothing else of the gateway's reaches it."""
    inherited = {key: value for key, value in environ.items() if key in ALLOWED or key.startswith("LC_")}
    return inherited | dict(configured)


_NOTIFICATION = b'"method":"notifications/'
NOTIFICATION_STARTS = 200
"""Bytes of a message among which its method stands, as the SDK writes them."""


class OpenStreams(Protocol):
    """Opens one upstream's transport. Tests put servers in memory here."""

    def __call__(
        self,
        upstream_id: str,
        definition: UpstreamDefinition,
        *,
        workplace: Workplace,
        logs_dir: Path,
        connect_timeout: float,
        http: HttpSide,
    ) -> AbstractAsyncContextManager[TransportStreams]: ...


@asynccontextmanager
async def open_streams(
    upstream_id: str,
    definition: UpstreamDefinition,
    *,
    workplace: Workplace,
    logs_dir: Path,
    connect_timeout: float,
    http: HttpSide,
    children: Children | None = None,
) -> AsyncIterator[TransportStreams]:
    """Open the transport; secrets are resolved here, as `workplace` has them, and live no longer than the connection.

    No message of more than `http.max_bytes` is taken. Processes are told to `children`, which one gateway shares.

    Raises:
        SecretError: a reference in the definition cannot be resolved.
        UpstreamUnusableError: the command or the working directory does not exist.
    """
    match definition.resolved_transport:
        case Transport.STDIO:
            async with _open_stdio(upstream_id, definition, workplace, logs_dir, http, children) as streams:
                yield streams
        case Transport.HTTP:
            async with (
                _http_client(definition, workplace, connect_timeout, http) as client,
                http_streams(resolve_in(definition.url or "", workplace), client, max_bytes=http.max_bytes) as streams,
            ):
                yield streams
        case Transport.SSE:
            from mcp.client.sse import sse_client

            def factory(
                headers: dict[str, str] | None = None,
                timeout: httpx2.Timeout | None = None,
                auth: httpx2.Auth | None = None,
            ) -> httpx2.AsyncClient:
                return _http_client(definition, workplace, connect_timeout, http)

            async with sse_client(resolve_in(definition.url or "", workplace), httpx_client_factory=factory) as streams:
                yield streams


@asynccontextmanager
async def _open_stdio(
    upstream_id: str,
    definition: UpstreamDefinition,
    workplace: Workplace,
    logs_dir: Path,
    http: HttpSide,
    given: Children | None,
) -> AsyncIterator[TransportStreams]:
    parameters = process_parameters(upstream_id, definition, workplace)
    log_file = log_path(logs_dir, upstream_id)
    begun = log_size(log_file)
    run = package_run(parameters.command, parameters.args)
    try:
        with nullcontext(given) if given is not None else open_children() as children:
            async with open_child(
                upstream_id,
                parameters,
                log_file=log_file,
                max_bytes=http.max_bytes,
                children=children,
                may_install=run is not None,
                on_start=partial(setattr, http, "pid"),
            ) as streams:
                yield streams
    except (FileNotFoundError, NotADirectoryError, PermissionError) as exc:
        raise UpstreamUnusableError(
            f"{upstream_id}: command {without_defaults(definition.command or '')!r} cannot be started: {exc.strerror}",
            hint=f"install it or correct servers.{upstream_id}.command",
        ) from exc
    # Whatever the connection ended with: the server's last words may say more.
    except Exception as exc:
        broken = npx_cache.broken(upstream_id, last_words(log_file, begun), run)
        if broken is None:
            raise
        raise broken from exc


def process_parameters(upstream_id: str, definition: UpstreamDefinition, workplace: Workplace) -> StdioServerParameters:
    """How the process of a stdio server is started from a workplace, with its secrets; the command as it is found.

    Raises:
        SecretError: a reference in the definition cannot be resolved.
        UpstreamUnusableError: the working directory does not exist.
    """
    cwd = _usable(workplace.folder)
    if definition.cwd:
        cwd = workplace.path(resolve_in(definition.cwd, workplace))
        if not (is_there(cwd) and cwd.is_dir()):
            raise UpstreamUnusableError(
                f"{upstream_id}: working directory {without_defaults(definition.cwd)!r} does not exist",
                hint=f"correct servers.{upstream_id}.cwd",
            )
    command = resolve_in(definition.command or "", workplace)
    configured = {key: resolve_in(value, workplace) for key, value in definition.env.items()}
    if definition.env_file:
        file = replace(workplace, folder=cwd).path(resolve_in(definition.env_file, workplace))
        written = Path(definition.cwd or "") / definition.env_file
        configured = read_env_file(file, without_defaults(str(written))) | configured
    env = child_environment(workplace.environ, configured)
    return StdioServerParameters(
        command=found_command(command, replace(workplace, folder=cwd), env.get("PATH", os.defpath)),
        args=[resolve_in(argument, workplace) for argument in definition.args],
        env=env,
        cwd=cwd,
    )


def _usable(folder: Path) -> Path:
    """A client's folder, or `/` where it is gone by now or closed to us: no server is refused its start for that."""
    return folder if is_there(folder) and folder.is_dir() and os.access(folder, os.X_OK) else Path(folder.anchor)


def found_command(command: str, workplace: Workplace, path: str) -> str:
    """The file that a command is, by a `PATH`; as it is written where there is none, which its start then says.

    Programs are looked up by the variables of their own, which are not those of this process.
    """
    if "/" in command or os.sep in command or command.startswith("~"):
        return str(workplace.path(command))
    folders = os.pathsep.join(str(workplace.folder / each) for each in path.split(os.pathsep))
    return shutil.which(command, path=folders) or command


def surroundings(upstream_id: str, definition: UpstreamDefinition, workplace: Workplace) -> str:
    """A hash of what a start depends on here: where the command lies, and what references stand for."""
    try:
        if definition.resolved_transport is Transport.STDIO:
            parameters = process_parameters(upstream_id, definition, workplace)
            found = f"{shutil.which(parameters.command, path='')} {parameters!r}"
        else:
            found = f"{resolve_in(definition.url or '', workplace)} {resolved_headers(definition, workplace)!r}"
    except GatewayError as error:
        found = str(error)
    return hashlib.sha256(found.encode("utf-8", "replace")).hexdigest()


def _http_client(
    definition: UpstreamDefinition, workplace: Workplace, connect_timeout: float, http: HttpSide
) -> httpx2.AsyncClient:
    async def watch(response: httpx2.Response) -> None:
        bound(response, http.max_bytes)
        await http.note(response.status_code, response.headers.get("www-authenticate", ""))
        http.failed_with = response.status_code if response.status_code in SERVER_FAILED else None
        # Balancers keep a session at one machine by a cookie.
        http.cookies.update(dict(response.cookies))
        http.session_id = response.headers.get(SESSION_HEADER, http.session_id)

    async def limit(request: httpx2.Request) -> None:
        # What the SDK sends without a deadline of its own; a server that never answers it would hold up the rest.
        if request.method == "DELETE" or _NOTIFICATION in _start(request):
            request.extensions["timeout"] = httpx2.Timeout(connect_timeout).as_dict()

    return httpx2.AsyncClient(
        headers={"accept-encoding": ACCEPTED_ENCODING, **resolved_headers(definition, workplace)},
        auth=http.authorization.for_httpx() if http.authorization is not None else None,
        # Reading has no limit of its own: every request has a deadline, and the notification stream stays open.
        timeout=httpx2.Timeout(connect_timeout, read=None),
        event_hooks={"request": [limit], "response": [watch]},
        **Network.of(workplace).client_options(),
    )


def _start(request: httpx2.Request) -> bytes:
    try:
        return request.content[:NOTIFICATION_STARTS]
    except httpx2.RequestNotRead:
        # A request that is redirected; the first one had its limit.
        return b""


def resolved_headers(definition: UpstreamDefinition, workplace: Workplace) -> dict[str, str]:
    """The configured headers with their secrets, as `workplace` has them.

    Raises:
        SecretError: a value has characters no header may have; HTTP libraries would quote the value in their error.
    """
    headers = {key: resolve_in(value, workplace) for key, value in definition.headers.items()}
    for key, value in headers.items():
        if not value.isprintable() or not value.isascii():
            raise SecretError(
                f"headers.{key}: the value has characters that no HTTP header may have",
                hint="often a line break at the end of a file or variable",
            )
    return headers
