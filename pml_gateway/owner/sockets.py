"""The owner's sockets of the processes that serve: found, and asked an operation each."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Generic

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

from pml_gateway.errors import GatewayError
from pml_gateway.owner.operations import OfProcess, ResultT
from pml_gateway.paths import Paths
from pml_gateway.serve.unix_sockets import SocketAddress, stranger

MAX_LINE = 16 * 1024 * 1024

DEAD_SECONDS = 1.0
"""Time limit in seconds for another gateway's socket to accept or refuse; one that does neither is left alone."""

OWN, SHARED = ".sock", ".attach"
"""Suffixes of sockets: of a gateway that is not shared or ends, and of the one that clients attach to."""

NO_ANSWER = (OSError, ValueError, anyio.IncompleteRead, anyio.DelimiterNotFound, anyio.BrokenResourceError)
"""Errors of a socket that no process serves, or that another program serves."""

NOTHING: Mapping[str, object] = MappingProxyType({})


def sockets(paths: Paths) -> list[Path]:
    """Return the owner's sockets of this home, also those that nobody serves any more."""
    return _files(paths, OWN, SHARED)


def _given_up(paths: Paths) -> list[Path]:
    """Return the sockets of gateways that were killed before these could be found."""
    return [path for path in _files(paths, ".new") if _was_of_killed(path)]


def _files(paths: Paths, *suffixes: str) -> list[Path]:
    try:
        return sorted(path for path in paths.run_dir.iterdir() if path.suffix in suffixes)
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


async def clear_dead(paths: Paths) -> None:
    """Remove the sockets of gateways that were killed; those of this process live."""
    for path in _files(paths, OWN):
        with suppress(OSError):
            if not path.name.startswith(f"{os.getpid()}-") and _is_own(path) and await _is_dead(path):
                path.unlink()
    for path in _given_up(paths):
        path.unlink(missing_ok=True)


async def _is_dead(path: Path) -> bool:
    """Return True if no process listens on the socket."""
    with anyio.move_on_after(DEAD_SECONDS), SocketAddress(str(path)) as address:
        try:
            stream = await anyio.connect_unix(address)
        except ConnectionRefusedError:
            return True
        await stream.aclose()
    return False


@dataclass(frozen=True, slots=True)
class Answers(Generic[ResultT]):
    """Results of the processes that serve, the errors of others, and the sockets of those that have ended."""

    by_socket: dict[Path, ResultT]
    errors: list[str]
    dead: list[Path]

    @property
    def results(self) -> list[ResultT]:
        """Return the results without the sockets that they came from."""
        return list(self.by_socket.values())


async def ask_gateways(
    paths: Paths,
    operation: OfProcess[ResultT],
    timeout: float,
    arguments: Mapping[str, object] = NOTHING,
    *,
    without: str = "",
    removes_dead: bool = True,
) -> Answers[ResultT]:
    """Return the answers of every process that serves, except on the socket `without`."""
    dead: list[Path] = []
    results: dict[Path, ResultT] = {}
    errors: dict[Path, str] = {}

    async def ask(path: Path) -> None:
        try:
            results[path] = await ask_socket(path, operation, timeout, arguments)
        except ConnectionRefusedError:
            with suppress(OSError):
                # Those of gateways that are shared go with the locks that are next to them.
                if path.suffix == OWN and _is_own(path):
                    dead.append(path)
        except FileNotFoundError:
            # It has ended meanwhile.
            return
        except GatewayError as error:
            errors[path] = str(error)
        except NO_ANSWER as error:
            errors[path] = f"{path.name}: no answer ({type(error).__name__})"

    asked = [path for path in sockets(paths) if str(path) != without]
    # At once, so that one that is slow takes nothing of the others' time.
    async with anyio.create_task_group() as tasks:
        for path in asked:
            tasks.start_soon(ask, path)
    dead += _given_up(paths)
    for path in dead if removes_dead else ():
        path.unlink(missing_ok=True)
    return Answers(
        {each: results[each] for each in asked if each in results}, [errors[each] for each in sorted(errors)], dead
    )


async def ask_socket(
    path: Path, operation: OfProcess[ResultT], timeout: float, arguments: Mapping[str, object] = NOTHING
) -> ResultT:
    """Return the result of one process.

    Raises:
        GatewayError: the operation failed.
        OSError: nobody serves the socket, or nobody answers in time; or another of `NO_ANSWER`.
    """
    with anyio.fail_after(timeout), SocketAddress(str(path)) as address:
        async with await anyio.connect_unix(address) as stream:
            if (user := stranger(stream.extra(anyio.abc.SocketAttribute.raw_socket))) is not None:
                raise PermissionError(errno.EPERM, f"the socket is served by a process of user {user}", str(path))
            await stream.send(request(operation, arguments))
            return result_of(operation, await BufferedByteReceiveStream(stream).receive_until(b"\n", MAX_LINE))


def request(operation: OfProcess[ResultT], arguments: Mapping[str, object]) -> bytes:
    """Return the line that asks a process for an operation."""
    return json.dumps({"operation": {"name": operation.name, "arguments": dict(arguments)}}).encode() + b"\n"


def result_of(operation: OfProcess[ResultT], line: bytes) -> ResultT:
    """Return the result in the line of an answer.

    Raises:
        GatewayError: the operation failed.
        ValueError: it is not an answer.
    """
    match json.loads(line):
        case {"result": dict() as result}:
            return operation.decoded(result)
        case {"error": {"message": str() as message, "hint": str() as hint}}:
            raise GatewayError(message, hint=hint)
    raise ValueError("its answer is no result")
