"""Where the gateway of one home and configuration file listens, and that both ends are the same user's.

What a bridge imports stays small, as there is one bridge a client: no dataclasses, no pathlib, no OpenSSL (hashlib).
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys
import time

from pml_gateway.serve.peer import stranger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Kind = Callable[[int], bool]
    StrPath = str | os.PathLike[str]

if sys.platform != "win32":
    import fcntl

MAX_ADDRESS = 100
"""Bytes a socket address holds, on every system; longer paths are reached through their folder."""

BACKLOG = 128
"""Bridges that may wait to be accepted at once: more than anybody has clients."""

LISTENER_SECONDS = 5.0
"""How long it may take to find out if another gateway listens on a socket."""

LIFE_SECONDS = 0.5
"""How long a gateway tries for its life lock, which others hold for the moment in which they look."""

POLL_SECONDS = 0.02

NOBODY = frozenset({errno.ENOENT, errno.ECONNREFUSED, errno.ECONNRESET, errno.ENOTDIR})
"""What the system says where nobody listens."""


class NobodyListensError(ConnectionError):
    """There is no gateway here now."""


class UnsupportedSystemError(Exception):
    """The system is Windows, where Python has no Unix sockets through which clients share a gateway."""

    def __init__(self) -> None:
        super().__init__(
            "one gateway for the machine is not supported on Windows; `pml serve --alone` starts one for one client"
        )


class UnsafeEndpointError(PermissionError):
    """What is here belongs to another user, or is open to others; nothing is said to it."""


class Endpoint:
    """The names of one gateway in `PML_HOME`: its socket, its locks, what it failed of, its log."""

    def __init__(self, home: str, name: str) -> None:
        self.folder = os.path.join(home, "run")
        self._base = os.path.join(self.folder, name)
        self.socket = f"{self._base}.attach"
        self.start_lock = f"{self._base}.start"
        """Held by whoever starts the gateway, while it does."""
        self.life_lock = f"{self._base}.life"
        """Held by the gateway for as long as it lives: there is never a second."""
        self.failure = f"{self._base}.failure"
        """Why the last start failed, for those that waited beside."""
        self.up_request = f"{self._base}.up"
        """What `pml up` asked for, for the gateway after one that was killed."""
        self.log = os.path.join(home, "logs", f"{name}.log")
        """What the detached gateway prints."""
        self._bound: tuple[int, int] | None = None

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
        """Make the folders for their owner alone; one of ours that is open to others is closed to them.

        Raises:
            UnsafeEndpointError: the folder of sockets is another user's.
            OSError: there can be no such folder.
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
        """Close the folder of sockets, where it is ours, to others; says so where it was open to them."""
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
        """Where its log is, if there is one: that of the service, or of one in the foreground, is elsewhere."""
        return f"its log is {self.log}" if os.path.exists(self.log) else ""

    def connect(self, timeout: float) -> socket.socket:
        """A connection to the gateway, whose other end is this user's. It blocks, without a timeout of its own.

        Raises:
            NobodyListensError: there is no gateway.
            UnsafeEndpointError: what listens, or the folder it is in, is not this user's alone.
            OSError: there is one, and it cannot be reached within `timeout` seconds.
        """
        try:
            self._check_folder()
            _check_own(self.socket, stat.S_ISSOCK)
            connection = self._connect(self.socket, timeout)
        except OSError as error:
            if error.errno in NOBODY:
                raise NobodyListensError(error.errno, "no gateway listens", self.socket) from error
            raise
        connection.settimeout(None)
        return connection

    def listen(self) -> socket.socket:
        """The socket on which the gateway of this endpoint accepts; whoever listens holds the life lock.

        Raises:
            UnsafeEndpointError: what is in its place belongs to another user.
            OSError: another gateway listens, or nobody can listen here.
        """
        self.prepare()
        try:
            self._connect(self.socket, LISTENER_SECONDS).close()
        except FileNotFoundError:
            pass
        except ConnectionRefusedError:
            _check_own(self.socket, stat.S_ISSOCK)
        except BlockingIOError:
            # So many wait for it that it takes no more.
            raise OSError(errno.EADDRINUSE, "another gateway listens", self.socket) from None
        else:
            raise OSError(errno.EADDRINUSE, "another gateway listens", self.socket)
        self._clear_unready()
        unready = f"{self._base}.{os.getpid()}.new"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Where the folder is entered by its owner alone, nobody else connects before the mode is set.
            with _Address(unready) as address:
                listener.bind(address)
            os.chmod(unready, 0o600)
            listener.listen(BACKLOG)
            # Who finds the socket can connect: it listens before it has its name.
            os.replace(unready, self.socket)
        except BaseException:
            listener.close()
            remove(unready)
            raise
        self._bound = _identity(self.socket)
        return listener

    def withdraw(self) -> None:
        """Take the name away under which this process listens, unless another has it by now."""
        bound, self._bound = self._bound, None
        try:
            if bound is not None and bound == _identity(self.socket):
                os.unlink(self.socket)
        except OSError:
            return

    def take_life(self, timeout: float = LIFE_SECONDS) -> int | None:
        """What holds the life lock until it is closed or this process ends; None while another gateway lives."""
        until = time.monotonic() + timeout
        while (held := take_lock(self.life_lock)) is None and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        if held is not None:
            os.ftruncate(held, 0)
            os.write(held, str(os.getpid()).encode())
        return held

    def leave(self, life: int) -> None:
        """Have the next gateway live, and leave nothing in the folder.

        Until `life` is closed, whoever watches this one sees that it has not ended.
        """
        if _is_named(life, self.life_lock):
            remove(self.life_lock)
        remove(self.failure)
        starting = take_lock(self.start_lock)
        if starting is not None:
            drop_lock(self.start_lock, starting)

    def living(self) -> int | None:
        """The process id of the gateway that lives here, also of one that does not listen yet, or no longer.

        Where the system does not show it, 0.
        """
        if not os.path.exists(self.life_lock):
            return None
        held = take_lock(self.life_lock)
        if held is not None:
            drop_lock(self.life_lock, held)
            return None
        try:
            with open(self.life_lock, "rb") as file:
                return _process_in(file.fileno())
        except OSError:
            return 0

    def watch(self) -> GatewayWatch:
        """The gateway that lives here now, to be watched until its end."""
        return GatewayWatch(self.life_lock, self.living())

    def age(self) -> float | None:
        """How many seconds ago, by the clock, the gateway began that lives here; None where none does."""
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
            with _Address(path) as address:
                connection.connect(address)
            check_peer(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _clear_unready(self) -> None:
        """Remove sockets of gateways that were killed before theirs had its name."""
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
    """A gateway, watched until its end; by then another one may live in its place. Nobody has ended already.

    Args:
        path: of the life lock.
        process: what held it; None for nobody.
    """

    def __init__(self, path: str, process: int | None) -> None:
        self.process = process
        self._lock: int | None = None
        if process is not None:
            try:
                self._lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            except FileNotFoundError:
                # It has ended since.
                return

    def __enter__(self) -> GatewayWatch:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)

    @property
    def has_ended(self) -> bool:
        """Whether it is gone, with all that it started."""
        if self._lock is None:
            return True
        if _locked(self._lock):
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            return True
        # The gateway after one that was killed takes the same file.
        return bool(self.process) and _process_in(self._lock) != self.process


def _process_in(lock: int) -> int:
    """Who says in a life lock that it lives; 0 where the system does not show it."""
    try:
        os.lseek(lock, 0, os.SEEK_SET)
        return int(os.read(lock, 20))
    except (OSError, ValueError):
        return 0


def _short_hash(text: str) -> str:
    """Enough to tell a user's configuration files apart. hashlib would load OpenSSL: 4 MB more for every client."""
    try:
        from _blake2 import blake2b
    except ImportError:
        from hashlib import blake2b
    return blake2b(os.fsencode(text), digest_size=6).hexdigest()


def _identity(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _check_own(path: str, is_kind: Kind, *, follow: bool = False) -> None:
    """See that a path is of the right kind, this user's, and open to nobody else.

    Raises:
        UnsafeEndpointError: it is not.
        OSError: there is none.
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
    """See that the other end of a connection is a process of this user.

    Raises:
        UnsafeEndpointError: it is not.
    """
    if (user := stranger(connection)) is not None:
        raise UnsafeEndpointError(errno.EPERM, f"the other end is a process of user {user}")


class _Address:
    """What to call a socket file; one whose path is too long is named through its open folder (Linux)."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = None

    def __enter__(self) -> str:
        if len(os.fsencode(self._path)) <= MAX_ADDRESS or not os.path.isdir("/proc/self/fd"):
            return self._path
        folder, name = os.path.split(self._path)
        self._descriptor = os.open(folder, os.O_RDONLY)
        return f"/proc/self/fd/{self._descriptor}/{name}"

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


def take_lock(path: str) -> int | None:
    """What holds a lock until it is closed or the process ends; None while another process holds it.

    Children do not inherit it.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        if not _locked(descriptor):
            os.close(descriptor)
            return None
        if _is_named(descriptor, path):
            return descriptor
        # Whoever held it took the name away: what counts is the file that has the name now.
        os.close(descriptor)


def drop_lock(path: str, descriptor: int) -> None:
    """Give a lock back for good, with its name: nothing is left of it."""
    if _is_named(descriptor, path):
        remove(path)
    os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_named(descriptor: int, path: str) -> bool:
    """Whether a file that is open still has its name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def write_owned(path: str, content: bytes) -> None:
    """Replace a file by one that its owner alone reads; a reader sees the old or the new one."""
    temporary = f"{path}.{os.getpid()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        remove(temporary)
        raise


def remove(path: str) -> None:
    """Remove a file, if it is there and can be."""
    try:
        os.unlink(path)
    except OSError:
        return
