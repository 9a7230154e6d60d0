"""Runs a command apart from this machine: as another user, without a network, with or without its loopback.

    python apart.py [--user ID] [--offline] [--no-loopback] COMMAND...

Linux only. Needs nothing installed; changing the user, and a network of its own where the kernel lets only root make
one, need root.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1


def main() -> None:
    """Set apart this process, then become the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--user", type=int)
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("--no-loopback", action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.offline or options.no_loopback:
        leave_the_network()
        if not options.no_loopback:
            raise_loopback()
    if options.user is not None:
        os.setgroups([])
        os.setresgid(options.user, options.user, options.user)
        os.setresuid(options.user, options.user, options.user)
    os.execvp(options.command[0], options.command)


def leave_the_network() -> None:
    """Into a network namespace with a loopback that is down and nothing else."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWNET if user == 0 else CLONE_NEWUSER | CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "no network namespace can be made")
    if user:
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")


def raise_loopback() -> None:
    """127.0.0.1 and ::1 answer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))


if __name__ == "__main__":
    main()
