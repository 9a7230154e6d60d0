"""The user at the other end of a Unix socket, as the system knows it."""

from __future__ import annotations

import os
import socket
import sys


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
