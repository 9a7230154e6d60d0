"""`systemctl`, `loginctl` and `launchctl` as far as the gateway asks them: scripts on PATH, with their state in files.

In the folder, `no-session` makes them refuse as they do where the user has none; `journal` has what they were asked.
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
units="${{XDG_CONFIG_HOME:-$HOME/.config}}/systemd/user"
link="$units/default.target.wants/pml-gateway.service"
case "$2" in
    enable) mkdir -p "$units/default.target.wants"; ln -sf ../pml-gateway.service "$link";;
    start | restart)
        if [ -e "$state/refuses" ]; then echo 'Job for pml-gateway.service failed.' >&2; exit 1; fi
        touch "$state/runs";;
    disable) rm -f "$link" "$state/runs"; rmdir "$units/default.target.wants";;
    reset-failed) exit 1;;
    show)
        if [ -e "$state/runs" ]; then echo ActiveState=active; echo MainPID=4711; echo Result=success
        else echo ActiveState=failed; echo MainPID=0; echo Result=exit-code; fi
        if [ -L "$link" ]; then echo UnitFileState=enabled; else echo UnitFileState=disabled; fi;;
esac
"""

_LAUNCHCTL = """
if [ -e "$state/no-session" ]; then echo 'Could not find domain for port' >&2; exit 125; fi
case "$1" in
    print-disabled) echo 'disabled services = {{'; echo '"pml-gateway" => enabled'; echo '}}';;
    print)
        if [ ! -e "$state/runs" ]; then echo 'Could not find service "pml-gateway"' >&2; exit 113; fi
        echo "gui/501/pml-gateway = {{"; echo "    state = running"; echo "    pid = 4711"; echo "}}";;
    bootstrap) touch "$state/runs";;
    bootout) rm -f "$state/runs";;
esac
"""

_LOGINCTL = """
echo Linger=no
"""


def managers_in(folder: Path) -> str:
    """The value of PATH with which they are found before those of the machine."""
    folder.mkdir(parents=True)
    for name, script in (("systemctl", _SYSTEMCTL), ("launchctl", _LAUNCHCTL), ("loginctl", _LOGINCTL)):
        program = folder / name
        program.write_text((_COMMON + script).format(folder=folder), encoding="utf-8")
        program.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def asked(folder: Path) -> list[str]:
    """What they were asked so far."""
    journal = folder / "journal"
    return journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
