"""The bridge: connects one client's stdin and stdout to the gateway of this machine, and reconnects when it is lost.

One thread polls all three files and never blocks on a single one. In each direction, nothing is read from one side
while the queue for the other side is full, so memory stays bounded, and neither direction can stall the other.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import stat
import sys
import time

from pml_gateway.local.endpoint import Endpoint
from pml_gateway.local.lines import FINISHING, LineBuffer, LineTooLongError, Outbox
from pml_gateway.local.memory import BridgedSession, InUseError
from pml_gateway.local.starting import FailedStartError, reach

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, NoReturn

CHUNK = 64 * 1024

LISTEN_SECONDS = 20.0
"""Seconds that a running gateway may take until it listens, which it does before it loads anything. If it ends instead,
this is reported at once."""

SILENT_SECONDS = 5.0
"""Seconds after which a waiting client's log says that the gateway has not answered."""

ATTACH_SECONDS = 90.0
"""Time limit in seconds for the gateway to read the settings of this client, at the same time as those of many others,
and to answer; `pml down` ends a gateway that hangs within 75."""

REPLACED_SECONDS = 75.0
"""Seconds that an older gateway may take to finish its calls before a newer one replaces it."""

LEFT_SECONDS = 75.0
"""Seconds of silence allowed from the gateway after the client's end of input: its last requests get 60 seconds."""

FIRST_REQUEST_SECONDS = 5.0
"""Seconds to wait for the first request of a client that cannot be served, so that its answer can say why."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 10.0
"""Seconds between attempts to start a gateway that fails to start; each attempt is caused by a request."""

SHORT_LIFE = 2.0
"""Seconds; a gateway lost sooner counts towards LOST_AT_ONCE, after which only a waiting request starts another."""

LOST_AT_ONCE = 3
"""Number of gateways lost in a row that is no longer taken for an accident."""

NOT_YET = frozenset({"down", "idle"})
"""Reasons for a deliberate end after which only the client's next message starts another gateway."""

LASTING = frozenset({2, 78})
"""Exit codes of errors that last until the options or the configuration are fixed."""


class RefusedError(Exception):
    """A gateway that does not serve this client, or no gateway at all."""

    def __init__(self, message: str, hint: str = "", exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code

    @property
    def is_retryable(self) -> bool:
        """Return True if a retry may succeed without a change of the options or the configuration."""
        return self.exit_code not in LASTING


class ServeAloneError(Exception):
    """The client needs a gateway of its own; the message says why: the configuration, or none can be shared here.

    If it is raised at the start, nothing has been read from the client yet.
    """


class LostError(Exception):
    """A lost connection to the gateway."""


class GatewayConnection:
    """A connection of this client to a gateway."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.lines = LineBuffer()
        self.out = Outbox()
        self.early: list[bytes] = []
        """Lines received together with the answer to the first line."""
        self.leaving: str | None = None
        self.since = time.monotonic()
        self.pid: object = None
        self.is_finishing = False
        self.is_half_closed = False

    def greet(self, hello: Mapping[str, Any]) -> dict[str, Any]:
        """Send the first line and return the gateway's answer.

        Raises:
            LostError: the connection ended without an answer.
            RefusedError: there was no answer in time.
        """
        self.socket.settimeout(ATTACH_SECONDS)
        try:
            self.socket.sendall(json.dumps(hello).encode() + b"\n")
            if not _ready([self.socket.fileno()], [], SILENT_SECONDS)[0]:
                tell(f"the gateway has not answered for {SILENT_SECONDS:g} s", "`pml down` ends one that hangs")
            while not self.early:
                chunk = self.socket.recv(CHUNK)
                if not chunk:
                    raise LostError
                self.early = self.lines.feed(chunk)
            answer = _notice(self.early.pop(0))
        except TimeoutError:
            raise RefusedError(
                f"the gateway does not answer within {ATTACH_SECONDS:g} s", "end it with `pml down`"
            ) from None
        except ConnectionError:
            raise LostError from None
        self.socket.setblocking(False)
        return answer

    def read(self) -> list[bytes]:
        """Return the complete lines that have arrived, without blocking.

        Raises:
            LostError: the connection has ended.
        """
        try:
            chunk = self.socket.recv(CHUNK)
        except BlockingIOError:
            return []
        except OSError:
            raise LostError from None
        if not chunk:
            raise LostError
        return self.lines.feed(chunk)

    def write(self) -> None:
        """Send as much of the queue as the socket takes now. `read` notices a lost connection, after the last lines."""
        try:
            self.out.taken(self.socket.send(self.out.next(CHUNK)))
        except BlockingIOError:
            return
        except OSError:
            self.out.clear()
        if self.is_finishing and not self.out:
            self._half_close()

    def finish(self) -> None:
        """Tell the gateway that the client sends no more, but still wants the pending answers."""
        self.is_finishing = True
        # Without this line, the gateway takes the end of the connection for a killed bridge.
        self.out.put(FINISHING + b"\n")

    def _half_close(self) -> None:
        self.is_half_closed = True
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            return


class GatewayDialer:
    """The way to the gateway of this machine; it is started if none runs.

    Args:
        endpoint: where the gateway listens.
        command: the command line that starts a gateway.
    """

    def __init__(self, endpoint: Endpoint, command: Sequence[str]) -> None:
        self._endpoint = endpoint
        self._command = command
        self._told: set[str] = set()
        """Notes of gateways that are already in the client's log."""
        self._has_replaced = False
        """True once a gateway was replaced for this client; to avoid a loop, the next one is accepted as it is."""

    def attach(self, hello: Mapping[str, Any]) -> GatewayConnection:
        """Return a connection to a gateway that has accepted this first line.

        Raises:
            RefusedError: there is no gateway, or it does not accept this client.
            ServeAloneError: the client needs a gateway of its own.
        """
        until = time.monotonic() + LISTEN_SECONDS
        gives_way, lost = False, 0
        if closed := self._endpoint.close_to_others():
            tell(closed)
        while True:
            try:
                link = GatewayConnection(reach(self._endpoint, self._command, until))
            except FailedStartError as error:
                raise RefusedError(error.message, error.hint, error.exit_code) from None
            except OSError as error:
                raise ServeAloneError(f"no gateway can be shared here: {error}") from None
            try:
                answer = link.greet({**hello, "replaced": self._has_replaced})
            except LostError:
                answer, lost = {}, lost + 1
                # The lost gateway may have hung; the next one gets the full time.
                until = max(until, time.monotonic() + LISTEN_SECONDS)
            if "attached" in answer:
                for note in answer["attached"].get("notes", ()):
                    if note not in self._told:
                        self._told.add(note)
                        tell(note)
                link.pid = answer["attached"].get("pid")
                return link
            link.socket.close()
            if "refused" in answer:
                refused = answer["refused"]
                raise RefusedError(refused["message"], refused.get("hint", ""), refused.get("exit", 1))
            if "alone" in answer:
                raise ServeAloneError("local.attach was switched off")
            self._has_replaced |= answer.get("leaving") == "replaced"
            if "leaving" in answer and not gives_way:
                gives_way = True
                until = time.monotonic() + REPLACED_SECONDS
            if lost >= LOST_AT_ONCE or time.monotonic() > until:
                raise RefusedError("the gateway ends again and again before it answers", self._endpoint.where_logged)
            time.sleep(0.05)


class Bridge:
    """The relay between one client and the gateway that currently serves it.

    Args:
        endpoint: where the gateway listens.
        command: the command line that starts a gateway.
        hello: the first line to the gateway, without its `state`.
        stdin: the file descriptor that the client writes to.
        stdout: the file descriptor that the client reads from.
    """

    def __init__(
        self, endpoint: Endpoint, command: Sequence[str], hello: Mapping[str, Any], stdin: int = 0, stdout: int = 1
    ) -> None:
        self._dialer = GatewayDialer(endpoint, command)
        self._hello = hello
        self._stdin = stdin
        self._stdout = stdout
        self._write, self._most = writer(stdout)
        self._client_lines = LineBuffer()
        self._to_client = Outbox()
        self._session = BridgedSession()
        self._link: GatewayConnection | None = None
        self._client_left = False
        self._short_lives = 0
        self._reason: RefusedError | None = None
        """Reason for the last failed attempt to attach; None after a successful one."""
        self._retry_at = 0.0
        self._pause = FIRST_PAUSE

    def run(self) -> int:
        """Serve until the client leaves, and return the exit code.

        Raises:
            ServeAloneError: the client needs a gateway of its own.
        """
        try:
            self._attach()
        except RefusedError as error:
            return self._refuse(error)
        try:
            while not self._is_finished:
                self._turn()
        except BrokenPipeError:
            # The client no longer reads its answers.
            return 0
        except LineTooLongError as error:
            tell(str(error))
            return 1
        finally:
            if self._link is not None:
                self._link.socket.close()
        return 0

    @property
    def _is_finished(self) -> bool:
        """Return True if the client has left and every answer is delivered."""
        link = self._link
        is_told = link is None or (link.is_half_closed and not self._session.waits)
        return self._client_left and is_told and not self._to_client

    # One turn

    def _turn(self) -> None:
        """Wait until something can be read or written, and handle it."""
        link = self._link
        reads: list[int] = []
        writes: list[int] = []
        ahead = self._to_client if link is None else link.out
        if not (self._client_left or self._session.is_restoring or ahead.is_full):
            reads.append(self._stdin)
        if link is not None and not self._to_client.is_full:
            reads.append(link.socket.fileno())
        if link is not None and link.out:
            writes.append(link.socket.fileno())
        if self._to_client:
            writes.append(self._stdout)
        readable, writable = _ready(reads, writes, self._patience())
        if not readable and not writable:
            self._lose("it does not answer")
            return
        if self._stdout in writable:
            self._to_client.taken(self._write(self._to_client.next(self._most)))
        if link is not None and link.socket.fileno() in writable:
            link.write()
        if link is not None and link.socket.fileno() in readable:
            self._read_gateway(link)
        if self._stdin in readable:
            self._read_client()
        link = self._link
        if self._client_left and link is not None and not (link.is_finishing or self._session.is_restoring):
            link.finish()

    def _patience(self) -> float | None:
        """Return the seconds to wait for activity: a gateway that restores or ends a session must send something."""
        if self._session.is_restoring:
            return ATTACH_SECONDS
        return LEFT_SECONDS if self._client_left else None

    def _read_client(self) -> None:
        try:
            chunk = os.read(self._stdin, CHUNK)
        except OSError:
            chunk = b""
        lines = self._client_lines.feed(chunk)
        if not chunk:
            self._client_left = True
            rest = self._client_lines.take_rest()
            lines = [rest + b"\n"] if rest else []
        for line in lines:
            try:
                passed, is_request = self._session.from_client(line)
            except InUseError as error:
                self._to_client.put(error.answer)
                continue
            link = self._link
            if link is None:
                if is_request:
                    self._have_gateway()
            elif not (self._session.is_restoring or (is_request and link.leaving)):
                # If the gateway is leaving or not ready, the request is remembered until a gateway can take it.
                link.out.put(passed or b"")

    def _read_gateway(self, link: GatewayConnection) -> None:
        try:
            self._take(link, link.read())
        except LostError:
            self._lose("")

    def _take(self, link: GatewayConnection, lines: Iterable[bytes]) -> None:
        for line in lines:
            if line.startswith(b"!"):
                notice = _notice(line)
                link.leaving = notice.get("leaving", link.leaving)
                self._session.notice(notice)
                continue
            was_restoring = self._session.is_restoring
            self._to_client.put(self._session.from_gateway(line) or b"")
            if was_restoring and not self._session.is_restoring:
                for each in self._session.rest():
                    link.out.put(each)

    # Gateways that come and go

    def _attach(self) -> GatewayConnection:
        """Attach with the known session state, and handle the lines that came with the answer.

        Raises:
            RefusedError: there is no gateway, or it does not accept this client.
            ServeAloneError: the client needs a gateway of its own.
        """
        link = self._link = self._dialer.attach({**self._hello, "state": self._session.state})
        self._take(link, link.early)
        return link

    def _lose(self, why: str) -> None:
        """Handle a lost gateway: attach to the next one, or go on without if nothing needs one yet."""
        link, self._link = self._link, None
        if link is None:
            return
        link.socket.close()
        if not self._client_left or self._session.waits:
            tell(f"the gateway (process {link.pid}) {f'ends ({link.leaving})' if link.leaving else why or 'was lost'}")
        for line in self._session.lost(link.lines.take_rest()):
            self._to_client.put(line)
        lived = time.monotonic() - link.since
        self._short_lives = self._short_lives + 1 if lived < SHORT_LIFE else 0
        is_wanted = self._session.waits
        if not is_wanted:
            is_wanted = not self._client_left and link.leaving not in NOT_YET and self._short_lives < LOST_AT_ONCE
        if is_wanted:
            self._retry_at = 0.0
            self._have_gateway()

    def _have_gateway(self) -> None:
        """Attach to a gateway and restore the session; if that fails, answer all requests in flight with the reason."""
        if self._reason is None or time.monotonic() >= self._retry_at:
            try:
                link = self._attach()
            except ServeAloneError as error:
                self._reason = RefusedError(str(error), "restart the client, which then gets a gateway of its own")
            except RefusedError as error:
                self._reason = error
            else:
                self._reason, self._pause = None, FIRST_PAUSE
                for line in self._session.restore():
                    link.out.put(line)
                return
            tell(self._reason.message, self._reason.hint)
            self._retry_at = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        reason = self._reason
        message = f"there is no gateway: {reason.message}"
        for line in self._session.give_up(message, reason.hint, is_retryable=reason.is_retryable):
            self._to_client.put(line)

    # No gateway at all

    def _refuse(self, error: RefusedError) -> int:
        """Say on stderr and in the answer to the first request why the client is not served; return the exit code."""
        tell_error(error.message, error.hint)
        until = time.monotonic() + FIRST_REQUEST_SECONDS
        while not self._session.waits and not os.isatty(self._stdin):
            left = until - time.monotonic()
            if left <= 0 or not _ready([self._stdin], [], left)[0]:
                break
            chunk = os.read(self._stdin, CHUNK)
            if not chunk:
                break
            for line in self._client_lines.feed(chunk):
                try:
                    self._session.from_client(line)
                except InUseError as in_use:
                    self._to_client.put(in_use.answer)
        for line in self._session.give_up(error.message, error.hint, is_retryable=error.is_retryable):
            self._to_client.put(line)
        while self._to_client and _ready([], [self._stdout], FIRST_REQUEST_SECONDS)[1]:
            try:
                self._to_client.taken(self._write(self._to_client.next(self._most)))
            except OSError:
                break
        return error.exit_code


def serve(endpoint: Endpoint, command: Sequence[str], hello: Mapping[str, Any]) -> int:
    """Run the bridge for the client at stdin and stdout until it leaves or a signal arrives; return the exit code.

    Raises:
        ServeAloneError: the client needs a gateway of its own; nothing was read from it.
    """
    before = {number: signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        return Bridge(endpoint, command, hello).run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, frame: object) -> NoReturn:
    """Exit at once: the end of the connection tells the gateway all that it needs to know."""
    raise SystemExit(0)


def _notice(line: bytes) -> dict[str, Any]:
    """Return the content of a notice line; empty if the line is not a notice."""
    try:
        said = json.loads(line.removeprefix(b"!"))
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def writer(descriptor: int) -> tuple[Callable[[memoryview], int], int]:
    """Return a function that writes to a ready file without blocking, and the maximum number of bytes for one write.

    The flags of the descriptor stay unchanged: other processes may have the file open as well.
    """
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISSOCK(kind):
        connection = socket.socket(fileno=os.dup(descriptor))
        return (lambda content: _none_if_blocked(connection.send, content, socket.MSG_DONTWAIT)), CHUNK
    if stat.S_ISREG(kind):
        return (lambda content: os.write(descriptor, content)), CHUNK
    if stat.S_ISFIFO(kind) and os.path.isdir("/proc/self/fd"):
        try:
            # Opened again, so that the descriptor has its own flags.
            own = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            # The pipe belongs to another user, for example if a client starts this with sudo.
            pass
        else:
            return (lambda content: _none_if_blocked(os.write, own, content)), CHUNK
    return (lambda content: os.write(descriptor, content)), select.PIPE_BUF


def _ready(reads: list[int], writes: list[int], seconds: float | None) -> tuple[list[int], list[int]]:
    """Wait until a file is ready or the time is over, and return the readable and the writable files."""
    # `select` accepts no descriptor above 1,023, but clients that leave many files open to their children exceed that.
    poll = select.poll()
    for each in {*reads, *writes}:
        poll.register(each, (select.POLLIN if each in reads else 0) | (select.POLLOUT if each in writes else 0))
    found = dict(poll.poll(None if seconds is None else seconds * 1000))
    # `poll` reports an end or an error for every registered file; reading and writing both handle it.
    return (
        [each for each in reads if found.get(each, 0) & ~select.POLLOUT],
        [each for each in writes if found.get(each, 0) & ~select.POLLIN],
    )


def _none_if_blocked(write: Callable[..., int], *arguments: Any) -> int:
    try:
        return write(*arguments)
    except BlockingIOError:
        return 0


def tell(message: str, hint: str = "") -> None:
    """Write a line to stderr, which clients keep in their log of this server."""
    _say(f"pml: {message}" + (f" ({hint})" if hint else ""))


def tell_error(message: str, hint: str = "") -> None:
    """Write to stderr why this client is not served, in the form that commands use."""
    _say(f"error: {message}" + (f"\n  {hint}" if hint else ""))


def _say(text: str) -> None:
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        # stderr is closed.
        return
