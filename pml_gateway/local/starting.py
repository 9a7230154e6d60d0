"""Reaching the gateway of an endpoint: connected to where it listens, started detached where there is none.

Any number of bridges may do this at once. Whoever holds the start lock starts one, the others look again and again; the
system releases the lock when its holder dies, so that nothing is left that blocks the next one.
"""

from __future__ import annotations

import json
import os
import signal
import time

from pml_gateway.local.endpoint import Endpoint, NobodyListensError, remove, take_lock, write_owned

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Collection, Mapping, Sequence

POLL_SECONDS = 0.03
CONNECT_SECONDS = 2.0
"""What accepting takes at most: the system does it, unless more wait than it keeps."""

MIDWIFE_SECONDS = 60
"""After this, whoever watches the start ends itself: whom it watches for has been killed."""

GRACE_SECONDS = 0.5
"""How long a gateway that does not listen in time may take to end itself."""

MAX_LOG_BYTES = 5 * 1024 * 1024
"""Size at which the log is put aside when a gateway starts; while it runs, the gateway rotates it itself."""

LAST_WORDS = 2000
"""Characters of the log that a failed start is explained with."""

LOOKED_AT = 4096
"""Files that may be open where the system does not list them."""

# fmt: off
NAMES = frozenset((
    "HOME", "PATH", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TEMP", "TMP", "PML_HOME",
    "VIRTUAL_ENV", "CONDA_PREFIX", "DBUS_SESSION_BUS_ADDRESS", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH",
    "DYLD_FALLBACK_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
))
# fmt: on
PREFIXES = ("LC_", "XDG_", "PYTHON", "HF_", "OMP_", "MKL_", "OPENBLAS_", "ORT_", "TOKENIZERS_", "MALLOC_")
"""What a gateway itself is started with: where it finds things, and how it computes. Nothing that is one client's.

Proxies and certificates are for what it fetches and reports itself, as a model or telemetry; requests to servers go by
those of the client that they are made for.
"""


class FailedStartError(Exception):
    """There is no gateway, and none could be started."""

    def __init__(self, message: str, hint: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code


def reach(
    endpoint: Endpoint, command: Sequence[str], deadline: float, environ: Mapping[str, str] = os.environ
) -> socket.socket:
    """A connection to the gateway; where there is none, `command` is started detached, by one of all who ask.

    Args:
        endpoint: where it listens.
        command: what is started: a gateway that takes the endpoint's life lock, and ends if another one holds it.
        deadline: by when it must listen, as `time.monotonic` counts.
        environ: what the gateway's own environment is taken from.

    Raises:
        FailedStartError: the gateway ended, or does not listen in time.
        UnsafeEndpointError: what is in its place is not this user's alone.
        OSError: there can be no socket here.
    """
    endpoint.prepare()
    failed_before = _stamp(endpoint.failure)
    while True:
        connection = _connect(endpoint)
        if connection is not None:
            return connection
        lock = take_lock(endpoint.start_lock)
        if lock is not None:
            try:
                # Whoever held it before may have had success, or failed, since we looked.
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


def own_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """What of an environment a gateway itself needs; clients' variables, tokens among them, are not the process's."""
    return {
        name: value
        for name, value in environ.items()
        if name.upper() in NAMES or (name.startswith(PREFIXES) and "TOKEN" not in name)
    }


def _connect(endpoint: Endpoint) -> socket.socket | None:
    try:
        return endpoint.connect(CONNECT_SECONDS)
    except (NobodyListensError, BlockingIOError, TimeoutError):
        # Also where so many wait to be accepted that the system takes no more just now.
        return None


def _start(
    endpoint: Endpoint,
    command: Sequence[str],
    deadline: float,
    environ: Mapping[str, str],
    *,
    is_second: bool = False,
) -> socket.socket | None:
    """The connection to a gateway that this process starts; None where another one came first after all.

    One that a signal ends is started once more: nothing need be wrong with it.

    Raises:
        FailedStartError: it ended, or does not listen in time.
    """
    said_before = _begin_log(endpoint.log)
    started = _Detached(command, own_environ(environ), endpoint)
    try:
        while True:
            ended = started.exit_code()
            connection = _connect(endpoint)
            if connection is not None:
                remove(endpoint.failure)
                return connection
            if ended is not None:
                if endpoint.living() is not None:
                    # Of a starter that was killed: ours has ended because that one lives.
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
    """A gateway in a session of its own, that is nobody's child: who ends a client's processes does not end it.

    A process between the two, which ends as soon as the gateway listens, tells how the gateway ends before.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], endpoint: Endpoint) -> None:
        self._code: int | None = None
        # Here, where it can be told that there can be none. A link in its place would have another file written.
        # Something else than a file, as a pipe, might be waited for without end.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        log = os.open(endpoint.log, flags, 0o600)
        # A client may ignore its children, and this would as well.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        reading, writing = os.pipe()
        self._midwife = os.fork()
        if not self._midwife:
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
        """How it ended, negative for a signal; None while it runs."""
        if self._code is None:
            try:
                said = os.read(self._reading, 16)
                self._code = int(said or b"127")
            except BlockingIOError:
                pass
        return self._code

    def kill(self) -> None:
        """End it, and what it has started by now."""
        until = time.monotonic() + GRACE_SECONDS
        self._signal(signal.SIGTERM)
        while self.exit_code() is None and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        self._signal(signal.SIGKILL)

    def leave(self) -> None:
        """Leave it alone from now on."""
        os.close(self._reading)
        os.kill(self._midwife, signal.SIGKILL)
        os.waitpid(self._midwife, 0)

    def _signal(self, number: signal.Signals) -> None:
        if self._pid:
            try:
                os.killpg(self._pid, number)
            except ProcessLookupError:
                return


def supervise_start(command: Sequence[str], environ: Mapping[str, str], home: str, log: int, writing: int) -> None:
    """Start the gateway, say its process id, wait for its end, and say its exit code."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(each, signal.SIG_DFL)
    # As one client has them, for all processes that come of this one.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.alarm(MIDWIFE_SECONDS)
    # Not the folder of one client, from where its modules would be imported as well.
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
    """Close the start lock, and whatever the client has left open; those that are, as the limit may be a billion."""
    try:
        found = [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        found = [*range(LOOKED_AT)]
    for each in found:
        if each not in kept:
            try:
                os.close(each)
            except OSError:
                # What listed them.
                continue


def _line(descriptor: int) -> bytes:
    said = b""
    while not said.endswith(b"\n") and (part := os.read(descriptor, 1)):
        said += part
    return said


def _begin_log(path: str) -> int:
    """Make room in the log, and give the size it has then."""
    try:
        size = os.path.getsize(path)
        if size <= MAX_LOG_BYTES:
            return size
        os.replace(path, f"{path}.1")
    except OSError:
        return 0
    return 0


def _last_words(path: str, before: int) -> str:
    """The end of what was logged since then, from the beginning of a line."""
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
    """The error of a failed start, also written down for those that wait beside, unless a signal ended it."""
    error = FailedStartError(
        f"{message}: {words}" if words else message,
        f"its log is {endpoint.log}; `pml doctor` checks the configuration, `pml serve --alone` does without it",
        exit_code if 0 < exit_code < 128 else 1,
    )
    if exit_code > 0:
        told = {"message": error.message, "hint": error.hint, "exit": error.exit_code}
        try:
            write_owned(endpoint.failure, json.dumps(told).encode())
        except OSError:
            # They try for themselves then.
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
    """What tells one failure from the one before."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _believe_failure(endpoint: Endpoint, before: tuple[int, int] | None) -> None:
    """Raise the failure of a start that was going on while this process waited."""
    if _stamp(endpoint.failure) in (None, before):
        return
    try:
        with open(endpoint.failure, "rb") as file:
            told = json.loads(file.read())
        error = FailedStartError(told["message"], told["hint"], told["exit"])
    except (OSError, ValueError, LookupError, TypeError):
        return
    raise error
