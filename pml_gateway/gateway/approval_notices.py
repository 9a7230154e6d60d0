"""Desktop notifications of calls that wait for the gateway's owner, if this machine has a program that shows them."""

from __future__ import annotations

import html
import os
import shutil
import subprocess
from collections import deque
from collections.abc import Sequence

import anyio
import anyio.to_thread

from pml_gateway.environment import gateway_environment
from pml_gateway.errors import SharedStateError
from pml_gateway.gateway.approval_requests import ApprovalRequest, ApprovalState
from pml_gateway.gateway.approval_stores import MAX_REQUESTS
from pml_gateway.gateway.approvals import Approvals
from pml_gateway.log import get_logger
from pml_gateway.signal import CoalescedSignal
from pml_gateway.text import escaped, shortened, some_of

logger = get_logger(__name__)

PROGRAM_SECONDS = 3.0
"""Time limit in seconds for the program: it hands the text to the desktop and ends."""

PAUSE_SECONDS = 5.0
"""Seconds between two notifications; one tells of everything that was asked meanwhile."""

MAX_TEXT = 200

APPLE_SCRIPT = ("on run argv", "display notification (item 2 of argv) with title (item 1 of argv)", "end run")


class ApprovalNotices:
    """Notifications of what waits, each of which is told once; calls never wait for them."""

    def __init__(self, approvals: Approvals) -> None:
        self._asked: deque[tuple[Approvals, ApprovalRequest]] = deque(maxlen=MAX_REQUESTS)
        self._due = CoalescedSignal()
        approvals.on_asked.append(self._note)

    async def run(self) -> None:
        """Show what is asked, for as long as the owner's task group lives."""
        await self._due.run(self._show)

    def _note(self, approvals: Approvals, request: ApprovalRequest) -> None:
        if request.settings.notify:
            self._asked.append((approvals, request))
            self._due.ask()

    async def _show(self) -> None:
        asked = list(self._asked)
        self._asked.clear()
        waiting = [request for approvals, request in asked if await _waits(approvals, request.id)]
        if waiting and (command := notification_command(*notice(waiting))) is not None:
            await anyio.to_thread.run_sync(_run, command)
            await anyio.sleep(PAUSE_SECONDS)


async def _waits(approvals: Approvals, id_: str) -> bool:
    try:
        found = await approvals.find(id_)
    except SharedStateError:
        return False
    return found is not None and found.state is ApprovalState.PENDING


def notice(waiting: Sequence[ApprovalRequest]) -> tuple[str, str]:
    """Return the title and the text about what waits; no arguments of calls are in it."""
    clients = some_of(list(dict.fromkeys(each.calls[0].client for each in waiting)))
    if len(waiting) > 1:
        return f"{len(waiting)} requests wait for your approval", f"{_shown(clients)}\npml approvals list"
    [request] = waiting
    tools = some_of([call.tool for call in request.calls])
    return "A call waits for your approval", f"{_shown(f'{clients}: {tools}')}\npml approvals show {request.id}"


def _shown(text: str) -> str:
    return shortened(escaped(text), MAX_TEXT)


def notification_command(title: str, text: str) -> list[str] | None:
    """Return the command that shows a notification; None if this machine has none."""
    # A folder that is relative to where the gateway was started may belong to anybody.
    folders = os.pathsep.join(filter(os.path.isabs, os.environ.get("PATH", os.defpath).split(os.pathsep)))
    if (program := shutil.which("notify-send", path=folders)) is not None:
        # Notifications may have markup.
        return [program, "--app-name=pml", "--", title, html.escape(text, quote=False)]
    if (program := shutil.which("osascript", path=folders)) is not None:
        return [program, *(word for line in APPLE_SCRIPT for word in ("-e", line)), title, text]
    return None


def _run(command: Sequence[str]) -> None:
    quiet = subprocess.DEVNULL
    try:
        subprocess.run(
            command,
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
            env=gateway_environment(os.environ),
            cwd="/",
            timeout=PROGRAM_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning("a call waits for approval, but no notification could be shown: %s", error)
