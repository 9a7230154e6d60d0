"""`systemctl` and `launchctl` as far as the gateway asks them: scripts on PATH, with their state in files.

In the folder, `no-session` makes them refuse as they do if the user has none; `journal` has what they were asked.
"""

from __future__ import annotations

import os
from pathlib import Path

_COMMON = """#!/bin/sh
state='{folder}'
echo "$(basename "$0") $*" >> "$state/journal"
"""

_SYSTEMCTL = """
if [ -e "$state/no-session" ]; then echo 'Failed to connect to bus: No such file or directory' >&2; exit 1; fi
if [ "$2" = show ]; then echo ActiveState=active; echo MainPID=4711; fi
"""

_LAUNCHCTL = """
if [ -e "$state/no-session" ]; then echo 'Could not find domain for port' >&2; exit 125; fi
"""


def managers_in(folder: Path) -> str:
    """Return the value of PATH with which they are found before those of the machine."""
    folder.mkdir(parents=True)
    for name, script in (("systemctl", _SYSTEMCTL), ("launchctl", _LAUNCHCTL)):
        program = folder / name
        program.write_text((_COMMON + script).format(folder=folder), encoding="utf-8")
        program.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def asked(folder: Path) -> list[str]:
    """Return what they were asked so far."""
    journal = folder / "journal"
    return journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
