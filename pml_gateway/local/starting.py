"""Connecting to the gateway of an endpoint, which is started as a detached process if none runs.

Any number of bridges may do this at once. The holder of the start lock starts the gateway, and the others poll; the
system releases the lock if its holder dies, so a killed bridge never blocks the next one.
"""

from __future__ import annotations

import json
import os
import signal
import time

from pml_gateway.environment import gateway_environment
from pml_gateway.files import lock_file, write_atomically
from pml_gateway.local.endpoint import Endpoint, NoListenerError, remove

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Collection, Mapping, Sequence

POLL_SECONDS = 0.03
CONNECT_SECONDS = 2.0
"""Time limit in seconds for connecting: the system accepts at once unless the backlog is full."""

SUPERVISION_SECONDS = 60
"""Seconds after which the supervisor of a start ends itself: its bridge must have been killed by then."""

GRACE_SECONDS = 0.5
"""Seconds between SIGTERM and SIGKILL for a gateway that does not listen in time."""

MAX_LOG_BYTES = 5 * 1024 * 1024
"""Bytes of the log above which it is renamed when a gateway starts; a running gateway rotates the log itself."""

LAST_WORDS = 2000
"""Maximum bytes of the log in the error of a failed start."""

LOOKED_AT = 4096
"""Number of file descriptors to close if the system does not list the open ones."""


class FailedStartError(Exception):
    """A failed attempt to start a gateway."""

    def __init__(self, message: str, hint: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code


def reach(
    endpoint: Endpoint, command: Sequence[str], deadline: float, environ: Mapping[str, str] = os.environ
) -> socket.socket:
    """Return a connection to the gateway; if none runs, exactly one of the concurrent callers starts `command`.

    Args:
        endpoint: where the gateway listens.
        command: command line of a gateway that takes the endpoint's life lock, and ends if another one holds it.
        deadline: `time.monotonic` time by which it must listen.
        environ: environment from which the gateway's own is taken.

    Raises:
        FailedStartError: the gateway ended, or does not listen in time.
        UnsafeEndpointError: the socket or its folder is not this user's alone.
        OSError: a socket is impossible here.
    """
    endpoint.prepare()
    failed_before = _stamp(endpoint.failure)
    while True:
        connection = _connect(endpoint)
        if connection is not None:
            return connection
        lock = lock_file(endpoint.start_lock)
        if lock is not None:
            try:
                # The previous holder may have succeeded or failed since the last check.
                connection = _connect(endpoint)
                if connection is None:
                    _believe_failure(endpoint, failed_before)
                    if endpoint.living() is None:
                        connection = _start(endpoint, command, deadline, environ)
            finally:
                os.close(lock)
            if connection is not None:
                return connection
        else:
            _believe_failure(endpoint, failed_before)
        if time.monotonic() > deadline:
            raise _late(endpoint)
        time.sleep(POLL_SECONDS)


def _connect(endpoint: Endpoint) -> socket.socket | None:
    try:
        return endpoint.connect(CONNECT_SECONDS)
    except (NoListenerError, BlockingIOError, TimeoutError):
        # The last two mean that the backlog is full.
        return None


def _start(
    endpoint: Endpoint,
    command: Sequence[str],
    deadline: float,
    environ: Mapping[str, str],
    *,
    is_second: bool = False,
) -> socket.socket | None:
    """Start a gateway and return a connection to it; None if another gateway took the life lock first.

    If a signal ends it, it is started once more: that may have nothing to do with the gateway.

    Raises:
        FailedStartError: the gateway ended, or does not listen in time.
    """
    said_before = _begin_log(endpoint.log)
    started = _Detached(command, gateway_environment(environ), endpoint)
    try:
        while True:
            ended = started.exit_code()
            connection = _connect(endpoint)
            if connection is not None:
                remove(endpoint.failure)
                return connection
            if ended is not None:
                if endpoint.living() is not None:
                    # A killed bridge had started another gateway, so this one has ended.
                    return None
                if ended < 0 and not is_second:
                    return _start(endpoint, command, deadline, environ, is_second=True)
                words = _last_words(endpoint.log, said_before)
                how = f"was ended by signal {-ended}, twice," if ended < 0 else f"ended with exit code {ended}"
                raise _failed(endpoint, f"the gateway {how} as it started", words, ended)
            if time.monotonic() > deadline:
                started.kill()
                words = _last_words(endpoint.log, said_before)
                raise _failed(endpoint, "the gateway was started and did not listen in time", words, 1)
            time.sleep(POLL_SECONDS)
    finally:
        started.leave()


class _Detached:
    """A gateway in its own session, orphaned on purpose, so that ending a client's process tree does not end it.

    A supervisor process in between, which is killed once the gateway listens, reports the gateway's exit code.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], endpoint: Endpoint) -> None:
        self._code: int | None = None
        # Opened here, where an error can be reported. O_NOFOLLOW: a link could redirect the output to another file.
        # O_NONBLOCK: opening a pipe could block forever.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        log = os.open(endpoint.log, flags, 0o600)
        # A client may ignore SIGCHLD; this process inherits that, and `waitpid` would fail.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        reading, writing = os.pipe()
        self._supervisor = os.fork()
        if not self._supervisor:
            try:
                supervise_start(command, environ, os.path.dirname(endpoint.folder), log, writing)
            finally:
                os._exit(127)
        os.close(log)
        os.close(writing)
        self._reading = reading
        self._pid = int(_line(reading) or 0)
        os.set_blocking(reading, False)

    def exit_code(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs."""
        if self._code is None:
            try:
                said = os.read(self._reading, 16)
                self._code = int(said or b"127")
            except BlockingIOError:
                pass
        return self._code

    def kill(self) -> None:
        """Kill it with the processes that it has started."""
        until = time.monotonic() + GRACE_SECONDS
        self._signal(signal.SIGTERM)
        while self.exit_code() is None and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        self._signal(signal.SIGKILL)

    def leave(self) -> None:
        """End the supervisor; the gateway runs on."""
        os.close(self._reading)
        os.kill(self._supervisor, signal.SIGKILL)
        os.waitpid(self._supervisor, 0)

    def _signal(self, number: signal.Signals) -> None:
        if self._pid:
            try:
                os.killpg(self._pid, number)
            except ProcessLookupError:
                return


def supervise_start(command: Sequence[str], environ: Mapping[str, str], home: str, log: int, writing: int) -> None:
    """Run as the supervisor: start the gateway, and write its process id and then its exit code to `writing`."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(each, signal.SIG_DFL)
    # The gateway and its children must not inherit the signals that one client has blocked.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.alarm(SUPERVISION_SECONDS)
    # Not the folder of one client: modules could be imported from there.
    os.chdir(home)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in enumerate((nothing, log, log)):
        os.dup2(source, target)
    _close_all_but((0, 1, 2, writing))
    gateway = os.fork()
    if not gateway:
        signal.alarm(0)
        os.setsid()
        try:
            os.execvpe(command[0], [*command], {**environ})
        except OSError as error:
            os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        os._exit(127)
    os.write(writing, f"{gateway}\n".encode())
    _, status = os.waitpid(gateway, 0)
    os.write(writing, str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _close_all_but(kept: Collection[int]) -> None:
    """Close the start lock and all files that the client left open; only listed ones, as the limit may be a billion."""
    try:
        found = [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        found = [*range(LOOKED_AT)]
    for each in found:
        if each not in kept:
            try:
                os.close(each)
            except OSError:
                # The descriptor of the listing itself.
                continue


def _line(descriptor: int) -> bytes:
    said = b""
    while not said.endswith(b"\n") and (part := os.read(descriptor, 1)):
        said += part
    return said


def _begin_log(path: str) -> int:
    """Rename the log if it is too large, and return the size of the current one in bytes."""
    try:
        size = os.path.getsize(path)
        if size <= MAX_LOG_BYTES:
            return size
        os.replace(path, f"{path}.1")
    except OSError:
        return 0
    return 0


def _last_words(path: str, before: int) -> str:
    """Return the end of the log after byte `before`, starting at a line."""
    try:
        with open(path, "rb") as log:
            size = log.seek(0, os.SEEK_END)
            begin = max(before, size - LAST_WORDS)
            log.seek(begin)
            said = log.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return (said.partition("\n")[2] if begin > before else said).strip()


def _failed(endpoint: Endpoint, message: str, words: str, exit_code: int) -> FailedStartError:
    """Return the error of a failed start, and write it to a file for other bridges unless it was due to a signal."""
    error = FailedStartError(
        f"{message}: {words}" if words else message,
        f"its log is {endpoint.log}; `pml doctor` checks the configuration, `pml serve --alone` does without it",
        exit_code if 0 < exit_code < 128 else 1,
    )
    if exit_code > 0:
        told = {"message": error.message, "hint": error.hint, "exit": error.exit_code}
        try:
            write_atomically(endpoint.failure, json.dumps(told))
        except OSError:
            # Without the file, the other bridges try for themselves.
            return error
    return error


def _late(endpoint: Endpoint) -> FailedStartError:
    living = endpoint.living()
    if living is None:
        return FailedStartError("no gateway listens in time", endpoint.where_logged)
    who = f"process {living}" if living else "a process"
    return FailedStartError(
        f"a gateway is running ({who}) that does not listen",
        "; ".join(filter(None, ("end it with `pml down`, or by its process id", endpoint.where_logged))),
    )


def _stamp(path: str) -> tuple[int, int] | None:
    """Return a stamp that differs between one failure file and the next; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _believe_failure(endpoint: Endpoint, before: tuple[int, int] | None) -> None:
    """Raise the error of another bridge's start if it failed while this process waited."""
    if _stamp(endpoint.failure) in (None, before):
        return
    try:
        with open(endpoint.failure, "rb") as file:
            told = json.loads(file.read())
        error = FailedStartError(told["message"], told["hint"], told["exit"])
    except (OSError, ValueError, LookupError, TypeError):
        return
    raise error
