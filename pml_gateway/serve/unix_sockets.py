"""Unix sockets: addresses for paths of any length, listening, and the user at the other end of a connection."""

from __future__ import annotations

import os
import socket
import sys

MAX_ADDRESS = 100
"""Maximum bytes of a socket address on every system; longer paths are reached through their open folder."""

BACKLOG = 128
"""Maximum number of bridges waiting to be accepted: more than the clients of any user."""


class SocketAddress:
    """The address of a socket file; if its path is too long, the address goes through its open folder (Linux)."""

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


def listening_at(path: str, unready: str) -> socket.socket:
    """Return a socket that listens at `path`, a file in a folder that only its owner can enter.

    It listens before it gets its name, so every process that finds it can connect; until then it is `unready`.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with SocketAddress(unready) as address:
            listener.bind(address)
        os.chmod(unready, 0o600)
        listener.listen(BACKLOG)
        os.replace(unready, path)
    except BaseException:
        listener.close()
        if os.path.exists(unready):
            os.unlink(unready)
        raise
    return listener


def peer_user(connection: socket.socket) -> int | None:
    """Return the user id of the process at the other end; None where the system does not say."""
    if hasattr(socket, "SO_PEERCRED"):
        said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    elif sys.platform == "darwin" or hasattr(socket, "LOCAL_PEERCRED"):
        # SOL_LOCAL and LOCAL_PEERCRED of <sys/un.h>; `struct xucred` has the user id behind its version.
        said = connection.getsockopt(0, getattr(socket, "LOCAL_PEERCRED", 1), 76)
    else:
        return None
    return int.from_bytes(said[4:8], sys.byteorder)


def stranger(connection: socket.socket) -> int | None:
    """Return the user id of another user's process at the other end; None for one of this user."""
    if sys.platform == "win32":
        return None
    user = peer_user(connection)
    return None if user == os.geteuid() else user
