"""Things that are not regular files, in the place of one."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def put_in_place_of_a_file(path: Path, kind: str) -> None:
    """Put a pipe, a socket, a device, a folder or a link to a file outside where a file is expected."""
    path.parent.mkdir(parents=True, exist_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as listener:
                before = Path.cwd()
                # The address of a socket is short.
                os.chdir(path.parent)
                try:
                    listener.bind(path.name)
                finally:
                    os.chdir(before)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case _:
            outside = path.parent.parent / "outside"
            outside.write_text("secret: 1\n")
            path.symlink_to(outside)
