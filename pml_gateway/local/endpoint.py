"""The endpoint of a gateway: the socket and locks for one home and configuration file, used by a single user only.

Bridges import this module, and each client has one, so its imports stay small: no dataclasses, pathlib or OpenSSL
(hashlib).
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys
import time

from pml_gateway.files import is_named, lock_file, try_lock
from pml_gateway.serve.unix_sockets import SocketAddress, listening_at, stranger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Kind = Callable[[int], bool]
    StrPath = str | os.PathLike[str]

if sys.platform != "win32":
    import fcntl

LISTENER_SECONDS = 5.0
"""Time limit in seconds for finding out if another gateway listens on a socket."""

LIFE_SECONDS = 0.5
"""Seconds for which a gateway tries to take its life lock; other processes hold it for a moment when they probe it."""

POLL_SECONDS = 0.02

NOBODY = frozenset({errno.ENOENT, errno.ECONNREFUSED, errno.ECONNRESET, errno.ENOTDIR})
"""Error numbers that mean that no process listens."""


class NoListenerError(ConnectionError):
    """A failed connection, as no gateway currently listens."""


class UnsupportedSystemError(Exception):
    """A system without the Unix sockets that clients need to share a gateway: Windows, where Python has none."""

    def __init__(self) -> None:
        super().__init__(
            "one gateway for the machine is not supported on Windows; `pml serve --alone` starts one for one client"
        )


class UnsafeEndpointError(PermissionError):
    """A socket or folder that belongs to another user or is open to others; nothing is sent to it."""


class Endpoint:
    """The files of one gateway in `PML_HOME`: its socket, its locks, its last failure, its log."""

    def __init__(self, home: str, name: str) -> None:
        self.folder = os.path.join(home, "run")
        self._base = os.path.join(self.folder, name)
        self.socket = f"{self._base}.attach"
        self.start_lock = f"{self._base}.start"
        """Path of the lock that a process holds while it starts the gateway."""
        self.life_lock = f"{self._base}.life"
        """Path of the lock that the gateway holds as long as it runs, so that there is never a second one."""
        self.failure = f"{self._base}.failure"
        """Path of the file with the error of the last failed start, for other processes that waited for it."""
        self.up_request = f"{self._base}.up"
        """Path of the file with the request of `pml up`, for the successor of a killed gateway."""
        self.log = os.path.join(home, "logs", f"{name}.log")
        """Path of the file with the output of the detached gateway."""
        self._bound: tuple[int, int] | None = None
        self._bound_to = self.socket

    @classmethod
    def of(cls, home: StrPath, config_file: StrPath) -> Endpoint:
        """Return the endpoint of a home and a configuration file.

        Raises:
            UnsupportedSystemError: the system is Windows.
        """
        if sys.platform == "win32":
            raise UnsupportedSystemError
        identity = os.path.abspath(config_file)
        return cls(os.path.abspath(home), f"gateway-{_short_hash(identity)}")

    def prepare(self) -> None:
        """Create the folders for their owner only; if a folder of this user is open to others, close it to them.

        Raises:
            UnsafeEndpointError: the folder of sockets belongs to another user.
            OSError: the folder cannot be created.
        """
        for folder in (self.folder, os.path.dirname(self.log)):
            os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
            try:
                os.mkdir(folder, 0o700)
            except FileExistsError:
                continue
        self.close_to_others()
        self._check_folder()

    def close_to_others(self) -> str:
        """Close this user's folder of sockets to others; return a message if it was open to them, else ""."""
        try:
            found = os.stat(self.folder)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or not found.st_mode & 0o077:
                return ""
            os.chmod(self.folder, 0o700)
        except OSError:
            return ""
        return f"{self.folder} was open to others (mode {stat.S_IMODE(found.st_mode):03o}), and is closed to them now"

    @property
    def where_logged(self) -> str:
        """Return a hint at the log file if it exists: a service or a gateway in the foreground logs elsewhere."""
        return f"its log is {self.log}" if os.path.exists(self.log) else ""

    def connect(self, timeout: float) -> socket.socket:
        """Return a blocking connection without a timeout to the gateway, once the other end is known to be this user's.

        Raises:
            NoListenerError: there is no gateway.
            UnsafeEndpointError: the listening process, the socket or its folder is not this user's alone.
            OSError: there is a gateway, but it cannot be reached within `timeout` seconds.
        """
        try:
            self._check_folder()
            _check_own(self.socket, stat.S_ISSOCK)
            connection = self._connect(self.socket, timeout)
        except OSError as error:
            if error.errno in NOBODY:
                raise NoListenerError(error.errno, "no gateway listens", self.socket) from error
            raise
        connection.settimeout(None)
        return connection

    def listen(self) -> socket.socket:
        """Return the socket on which the gateway of this endpoint accepts; the caller must hold the life lock.

        Raises:
            UnsafeEndpointError: the file in its place belongs to another user.
            OSError: another gateway listens, or it is impossible to listen here.
        """
        self.prepare()
        try:
            self._connect(self.socket, LISTENER_SECONDS).close()
        except FileNotFoundError:
            pass
        except ConnectionRefusedError:
            _check_own(self.socket, stat.S_ISSOCK)
        except BlockingIOError:
            # The queue of the other gateway is full.
            raise OSError(errno.EADDRINUSE, "another gateway listens", self.socket) from None
        else:
            raise OSError(errno.EADDRINUSE, "another gateway listens", self.socket)
        self._clear_unready()
        listener = listening_at(self.socket, f"{self._base}.{os.getpid()}.new")
        self._bound, self._bound_to = _identity(self.socket), self.socket
        return listener

    def make_room(self) -> None:
        """Rename the socket file of this process, so that only commands to every gateway find it until it ends."""
        try:
            if self._bound == _identity(self.socket):
                ending = os.path.join(self.folder, f"{os.getpid()}-{os.urandom(4).hex()}.sock")
                os.rename(self.socket, ending)
                self._bound_to = ending
        except OSError:
            return

    def withdraw(self) -> None:
        """Remove the socket file of this process, unless it belongs to another gateway by now."""
        bound, self._bound = self._bound, None
        try:
            if bound is not None and bound == _identity(self._bound_to):
                os.unlink(self._bound_to)
        except OSError:
            return

    def take_life(self, timeout: float = LIFE_SECONDS) -> int | None:
        """Take the life lock and return its descriptor, which holds it until closed; None if another gateway runs."""
        until = time.monotonic() + timeout
        while (held := lock_file(self.life_lock)) is None and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        if held is not None:
            os.ftruncate(held, 0)
            os.write(held, str(os.getpid()).encode())
        return held

    def leave(self, life: int) -> None:
        """Remove the files of this gateway, so that the next one can start.

        Until `life` is closed, a GatewayWatch still reports this gateway as running.
        """
        if is_named(life, self.life_lock):
            remove(self.life_lock)
        remove(self.failure)
        starting = lock_file(self.start_lock)
        if starting is not None:
            drop_lock(self.start_lock, starting)

    def living(self) -> int | None:
        """Return the process id of the gateway that runs here, even if it does not listen yet or any more.

        None if there is no gateway, 0 if its process id is unknown.
        """
        if not os.path.exists(self.life_lock):
            return None
        held = lock_file(self.life_lock)
        if held is not None:
            drop_lock(self.life_lock, held)
            return None
        try:
            with open(self.life_lock, "rb") as file:
                return _process_in(file.fileno())
        except OSError:
            return 0

    @property
    def was_killed(self) -> bool:
        """Return True if `pml up` asked for a gateway that has gone without `pml down`, and none is in its place."""
        return os.path.exists(self.up_request) and self.living() is None

    def watch(self) -> GatewayWatch:
        """Return a watch on the gateway that currently runs here."""
        return GatewayWatch(self.life_lock, self.living())

    def age(self) -> float | None:
        """Return the seconds since the gateway here started, by the wall clock; None if there is none."""
        try:
            return None if self.living() is None else time.time() - os.path.getmtime(self.life_lock)
        except OSError:
            return None

    def _check_folder(self) -> None:
        _check_own(self.folder, stat.S_ISDIR, follow=True)

    def _connect(self, path: str, timeout: float) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout)
            with SocketAddress(path) as address:
                connection.connect(address)
            check_peer(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _clear_unready(self) -> None:
        """Remove sockets of gateways that were killed before the socket got its final name."""
        before = os.path.basename(self._base)
        for name in os.listdir(self.folder):
            path = os.path.join(self.folder, name)
            if not (name.startswith(f"{before}.") and name.endswith(".new")):
                continue
            try:
                _check_own(path, stat.S_ISSOCK)
                self._connect(path, LISTENER_SECONDS).close()
            except ConnectionRefusedError:
                remove(path)
            except OSError:
                continue


class GatewayWatch:
    """A watch on one gateway until its end, even if another one has taken its place by then.

    Args:
        path: path of the life lock.
        process: process id of the gateway; if None, there is none, and it counts as ended.
    """

    def __init__(self, path: str, process: int | None) -> None:
        self.process = process
        self._lock: int | None = None
        if process is not None:
            try:
                self._lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            except FileNotFoundError:
                # The gateway has ended in the meantime.
                return

    def __enter__(self) -> GatewayWatch:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)

    @property
    def has_ended(self) -> bool:
        """Return True if the gateway and all that it started have ended."""
        if self._lock is None:
            return True
        if try_lock(self._lock):
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            return True
        # The successor of a killed gateway takes the same file.
        return bool(self.process) and _process_in(self._lock) != self.process


def _process_in(lock: int) -> int:
    """Return the process id in a life lock; 0 if it cannot be read."""
    try:
        os.lseek(lock, 0, os.SEEK_SET)
        return int(os.read(lock, 20))
    except (OSError, ValueError):
        return 0


def _short_hash(text: str) -> str:
    """Return a hash that tells a user's configuration files apart. hashlib would load OpenSSL: 4 MB more per client."""
    try:
        from _blake2 import blake2b
    except ImportError:
        from hashlib import blake2b
    return blake2b(os.fsencode(text), digest_size=6).hexdigest()


def _identity(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _check_own(path: str, is_kind: Kind, *, follow: bool = False) -> None:
    """Check that a path is of the right kind, belongs to this user, and is closed to others.

    Raises:
        UnsafeEndpointError: the check failed.
        OSError: the path does not exist.
    """
    found = os.stat(path) if follow else os.lstat(path)
    if not is_kind(found.st_mode):
        raise UnsafeEndpointError(errno.EPERM, "something else is in this place; remove it", path)
    if found.st_uid != os.geteuid():
        raise UnsafeEndpointError(errno.EPERM, f"it belongs to user {found.st_uid}; set PML_HOME to your own", path)
    if found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        raise UnsafeEndpointError(errno.EPERM, f"it is open to others (mode {mode:03o}); chmod go= it", path)


def check_peer(connection: socket.socket) -> None:
    """Check that the other end of a connection is a process of this user.

    Raises:
        UnsafeEndpointError: the check failed.
    """
    if (user := stranger(connection)) is not None:
        raise UnsafeEndpointError(errno.EPERM, f"the other end is a process of user {user}")


def drop_lock(path: str, descriptor: int) -> None:
    """Release a lock and remove its file."""
    if is_named(descriptor, path):
        remove(path)
    os.close(descriptor)


def remove(path: str) -> None:
    """Remove a file; errors are ignored."""
    try:
        os.unlink(path)
    except OSError:
        return
