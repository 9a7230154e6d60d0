"""A running gateway's control socket, for its owner's own commands, and the status it reports."""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import stat
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

from pml_gateway import __version__
from pml_gateway.catalog.prompts_and_resources import OfferKind
from pml_gateway.errors import ResultStoreError
from pml_gateway.files import OWNER_ONLY, make_private
from pml_gateway.home import RUN, warn_unwritable
from pml_gateway.log import Seldom, get_logger
from pml_gateway.paths import Paths
from pml_gateway.secrets.judgement import MASK
from pml_gateway.secrets.known import KNOWN_SECRETS
from pml_gateway.serve.peer import stranger
from pml_gateway.types import JsonObject

if TYPE_CHECKING:
    # The server stack takes 0.7 s to import, which commands that only ask do without.
    from pml_gateway.catalog.model import CatalogTool
    from pml_gateway.gateway.gateway import Gateway
    from pml_gateway.serve.presence import Presence
    from pml_gateway.serve.sampling import ClientModel
    from pml_gateway.upstreams.upstream import Upstream


async def read_logins(gateway: Gateway) -> None:
    """Look at the stored logins, which other processes change, before a report."""
    for upstream in gateway.pool.upstreams.values():
        if upstream.authorization is not None:
            await upstream.authorization.read()


def gateway_status(gateway: Gateway) -> JsonObject:
    """Mode, catalog size and every upstream; times in seconds."""
    settings = gateway.state.settings
    tools: dict[str, list[CatalogTool]] = {}
    for tool in gateway.state.catalog.tools:
        tools.setdefault(tool.upstream_id, []).append(tool)
    return {
        "pid": os.getpid(),
        "version": __version__,
        "folder": str(gateway.pool.working_directory.folder),
        "mode": settings.gateway.tools_exposure.value,
        "tools": len(gateway.state.catalog.tools),
        "upstreams": [
            _upstream(gateway, upstream, tools.get(upstream.upstream_id, ()))
            for upstream in gateway.pool.upstreams.values()
        ],
    }


def _upstream(gateway: Gateway, upstream: Upstream, tools: Sequence[CatalogTool]) -> JsonObject:
    from pml_gateway.upstreams.lifecycle import UpstreamState

    listed = upstream.last_listed
    offers = gateway.state.catalog.offers
    pins = gateway.trust_gate.servers.get(upstream.upstream_id)
    return {
        "server": upstream.upstream_id,
        "state": upstream.state.value,
        "transport": upstream.definition.resolved_transport.value,
        "era": listed.era if listed else None,
        "tools": len(tools),
        "listed": len(listed.tools) if listed else None,
        **{
            str(kind): sum(1 for each in offers.of_kind(kind) if each.upstream_id == upstream.upstream_id)
            for kind in OfferKind
        },
        "stale": upstream.state is UpstreamState.FAILED and bool(tools),
        "latency_seconds": upstream.last_call_seconds or (listed.seconds if listed else None),
        "age_seconds": round(time.time() - at, 3) if (at := gateway.listed_at(upstream)) is not None else None,
        "in_flight": upstream.in_flight,
        "auth": upstream.authorization.status() if upstream.authorization else {"state": "not_needed"},
        "breaker": upstream.breaker.report(),
        "error": KNOWN_SECRETS.masked(str(why), MASK) if (why := upstream.installing or upstream.last_error) else None,
        "hint": KNOWN_SECRETS.masked(upstream.last_error.hint, MASK) if upstream.last_error else None,
        "list_faults": [KNOWN_SECRETS.masked(fault, MASK) for fault in listed.faults] if listed else [],
        "held_back": len(pins.held) if pins is not None else 0,
        "flagged": len(pins.flagged) if pins is not None else 0,
        "repaired": [{"tool": tool.qualified_name, "repairs": list(tool.repairs)} for tool in tools if tool.repairs],
    }


logger = get_logger(__name__)

_strangers = Seldom(logger)

MAX_LINE = 16 * 1024 * 1024
MAX_SOCKET_PATH = 100
"""Bytes a socket address holds, on every system; longer paths are reached through their directory."""

ANSWER_SECONDS = 60.0
"""Time limit in seconds for a command, unless a client answers it: that has a limit of its own."""

REFRESH_SECONDS = 20.0

DEAD_SECONDS = 1.0
"""Time limit in seconds for another gateway's socket to accept or refuse; one that does neither is left alone."""


Reload = Callable[[], Awaitable[str | None]]
"""Loads the configuration and serves by it; gives what is wrong with it, where it is broken."""


async def serve_control(gateway: Gateway, paths: Paths, reload: Reload, presence: Presence, model: ClientModel) -> None:
    """Answer commands until the owner's task group ends; without a usable directory the gateway runs on without."""
    try:
        make_private(paths.run_dir)
        # A name of its own, also where a process had this number before: nobody takes one for the other's.
        name = f"{os.getpid()}-{secrets.token_hex(4)}"
        path, unready = paths.run_dir / f"{name}.sock", paths.run_dir / f"{name}.new"
        try:
            # Not cancelled: a thread binds it, and would do so after we have left.
            with _reachable(unready) as address, anyio.CancelScope(shield=True):
                listener = await anyio.create_unix_listener(address, mode=OWNER_ONLY)
            async with listener, anyio.create_task_group() as tasks:
                try:
                    # It listens for as long as it can be found: one that is found and refuses has been left behind.
                    unready.rename(path)
                    await _clear_dead(paths)
                    answer = partial(_answer, gateway, reload, presence, model)
                    tasks.start_soon(_accept, listener, answer, tasks)
                    await anyio.sleep_forever()
                finally:
                    path.unlink(missing_ok=True)
                    with anyio.CancelScope(shield=True):
                        await listener.aclose()
        finally:
            unready.unlink(missing_ok=True)
    except OSError as error:
        warn_unwritable(RUN, paths.run_dir, error)


async def _accept(
    listener: anyio.abc.Listener[anyio.abc.SocketStream],
    answer: Callable[[anyio.abc.SocketStream], Awaitable[None]],
    tasks: anyio.abc.TaskGroup,
) -> None:
    """Accept until the listener is closed; asyncio does not stand a cancellation as somebody connects."""
    with anyio.CancelScope(shield=True), suppress(anyio.ClosedResourceError):
        await listener.serve(answer, tasks)


async def _clear_dead(paths: Paths) -> None:
    """Remove the sockets of gateways that were killed; those of this process live."""
    for path in sockets(paths):
        with suppress(OSError):
            if not path.name.startswith(f"{os.getpid()}-") and _is_own(path) and await _is_dead(path):
                path.unlink()
    for path in _given_up(paths):
        path.unlink(missing_ok=True)


def sockets(paths: Paths) -> list[Path]:
    """Return the control sockets of this home, also those that nobody serves any more."""
    return _files(paths, ".sock")


def _given_up(paths: Paths) -> list[Path]:
    """Return the sockets of gateways that were killed before these could be found."""
    return [path for path in _files(paths, ".new") if _was_of_killed(path)]


def _files(paths: Paths, suffix: str) -> list[Path]:
    try:
        return sorted(path for path in paths.run_dir.iterdir() if path.suffix == suffix)
    except OSError:
        # There is no such folder, or none that we may look into.
        return []


def _was_of_killed(path: Path) -> bool:
    """Return True if the process that a socket is named after has ended; a starting one does not listen yet."""
    try:
        if _is_own(path):
            os.kill(int(path.name.partition("-")[0]), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, OverflowError):
        # It is another user's by now, gone, or none of ours.
        pass
    return False


def _is_own(path: Path) -> bool:
    """Return True if the path is a socket of this user; only those are removed."""
    status = path.lstat()
    return stat.S_ISSOCK(status.st_mode) and status.st_uid == os.geteuid()


async def _is_dead(path: Path) -> bool:
    """Return True if no process listens on the socket."""
    with anyio.move_on_after(DEAD_SECONDS), _reachable(path) as address:
        try:
            stream = await anyio.connect_unix(address)
        except ConnectionRefusedError:
            return True
        await stream.aclose()
    return False


async def _answer(
    gateway: Gateway, reload: Reload, presence: Presence, model: ClientModel, stream: anyio.abc.SocketStream
) -> None:
    async with stream:
        if (user := stranger(stream.extra(anyio.abc.SocketAttribute.raw_socket))) is not None:
            _strangers.warning("a process of user %d asked on the control socket, and was refused", user)
            return
        with anyio.move_on_after(ANSWER_SECONDS) as limit:
            try:
                request = json.loads(await BufferedByteReceiveStream(stream).receive_until(b"\n", MAX_LINE))
                if isinstance(request, dict) and request.get("command") == "sample":
                    limit.deadline = math.inf
                    answer = await _while_awaited(stream, partial(model.answer, request))
                else:
                    answer = await _execute(gateway, reload, presence, model, request)
            except ResultStoreError as error:
                answer = {"error": str(error)}
            except (ValueError, anyio.IncompleteRead, anyio.DelimiterNotFound):
                answer = {"error": "one line with a JSON object is expected"}
            try:
                await stream.send(json.dumps(answer).encode() + b"\n")
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return


async def _while_awaited(stream: anyio.abc.SocketStream, answer: Callable[[], Awaitable[JsonObject]]) -> JsonObject:
    """Return an answer that is given up when whoever asked for it leaves."""
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                await stream.receive()
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        given = await answer()
        tasks.cancel_scope.cancel()
        return given
    return {"error": "no client waited for the answer"}


async def _execute(
    gateway: Gateway, reload: Reload, presence: Presence, model: ClientModel, request: object
) -> JsonObject:
    command = request.get("command") if isinstance(request, dict) else None
    match command:
        case "status":
            await read_logins(gateway)
            return {**gateway_status(gateway), **presence.as_json()}
        case "reconnect":
            upstream = gateway.pool.upstreams.get(str(request.get("server")) if isinstance(request, dict) else "")
            if upstream is None:
                return {"error": "no such server"}
            upstream.reconnect()
            return {"reconnecting": upstream.upstream_id, "pid": os.getpid()}
        case "refresh":
            complete = await gateway.refresh(REFRESH_SECONDS)
            await read_logins(gateway)
            return {"complete": complete, **gateway_status(gateway), **presence.as_json()}
        case "reload":
            problem = await reload()
            return {"error": problem} if problem else gateway_status(gateway)
        case "client":
            return model.as_json()
        case _:
            known = "status, refresh, reload, reconnect, client and sample"
            return {"error": f"unknown command {command!r}; known are {known}"}


async def ask_gateways(paths: Paths, command: str, timeout: float = 30.0, **arguments: str) -> list[JsonObject]:
    """Return the answers of every gateway that runs with this home directory; sockets nobody serves are removed."""
    answers, dead = await ask_sockets(paths, command, timeout, **arguments)
    for path in dead:
        path.unlink(missing_ok=True)
    return answers


async def ask_sockets(
    paths: Paths, command: str, timeout: float = 30.0, **arguments: str
) -> tuple[list[JsonObject], list[Path]]:
    """Return the answers of every gateway that runs with this home directory, and the sockets that nobody serves."""
    dead: list[Path] = []
    found: dict[Path, JsonObject] = {}

    async def ask(path: Path) -> None:
        try:
            found[path] = await ask_socket(path, command, timeout, **arguments)
        except ConnectionRefusedError:
            with suppress(OSError):
                if _is_own(path):
                    dead.append(path)
        except NO_ANSWER as error:
            found[path] = {"error": f"{path.name}: no answer ({type(error).__name__})"}

    asked = sockets(paths)
    # At once, so that one that is slow takes nothing of the others' time.
    async with anyio.create_task_group() as tasks:
        for path in asked:
            tasks.start_soon(ask, path)
    return [found[path] for path in asked if path in found], dead + _given_up(paths)


NO_ANSWER = (OSError, ValueError, anyio.IncompleteRead, anyio.DelimiterNotFound, anyio.BrokenResourceError)
"""Errors of a socket that no process serves, or that another program serves."""


async def ask_socket(path: Path, command: str, timeout: float, **arguments: object) -> JsonObject:
    """Return the answer of one gateway.

    Raises:
        OSError: nobody serves the socket, or nobody answers in time; or another of `NO_ANSWER`.
    """
    with anyio.fail_after(timeout), _reachable(path) as address:
        async with await anyio.connect_unix(address) as stream:
            if (user := stranger(stream.extra(anyio.abc.SocketAttribute.raw_socket))) is not None:
                raise PermissionError(errno.EPERM, f"the socket is served by a process of user {user}", str(path))
            await stream.send(json.dumps({**arguments, "command": command}).encode() + b"\n")
            answer: JsonObject = json.loads(await BufferedByteReceiveStream(stream).receive_until(b"\n", MAX_LINE))
            return answer


@contextmanager
def _reachable(path: Path) -> Iterator[str]:
    """Yield an address for a socket file; one that is too long goes through an open directory (Linux)."""
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH or not Path("/proc/self/fd").is_dir():
        yield str(path)
        return
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)
