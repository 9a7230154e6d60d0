"""Starts of servers: a limit on those at the same time, of which those with most waiting calls start first."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from pml_gateway.config.servers import Transport
from pml_gateway.config.settings import EffectiveSettings
from pml_gateway.mcp.connection import Connection, open_connection
from pml_gateway.mcp.elicitation import Questions
from pml_gateway.mcp.http import ConnectionFacts
from pml_gateway.mcp.negotiation import NegotiatedProtocol
from pml_gateway.mcp.session import HeaderMaps, OnNotice
from pml_gateway.mcp.transport import OpenStreams
from pml_gateway.processes.installs import Installs
from pml_gateway.working_directory import WorkingDirectory

if TYPE_CHECKING:
    from pml_gateway.upstreams.auth.authorization import Authorization

AT_ONCE = max(4, 2 * (os.cpu_count() or 2))
"""Maximum number of servers that start at the same time: twenty at once would all be late on a small machine."""

START_SECONDS = 1.0
"""Seconds that a starting server may delay the others: one that takes longer mostly waits itself."""

EVERYBODY = ""
"""Client id of starts that are not for one client."""

Urgency = Callable[[], int]
"""Returns the number of calls that currently wait for a server."""


class StartTurn:
    """One start, from its permission to begin until it ends or has used its time."""

    def __init__(self, starts: Starts, whose: str = EVERYBODY) -> None:
        self.whose = whose
        self._starts = starts
        self.is_due = anyio.Event()
        self.ends_at = 0.0

    def end(self) -> None:
        """End the turn: the server has started, or failed."""
        self._starts.end(self)


class Starts:
    """The starts of one process."""

    def __init__(self) -> None:
        self._running: list[StartTurn] = []
        self._waiting: dict[StartTurn, Urgency] = {}
        self._had: Counter[str] = Counter()
        """Number of starts of each client while others waited."""

    async def turn(self, urgency: Urgency, whose: str = EVERYBODY) -> StartTurn:
        """Wait until a server may be started; the caller ends the turn it gets."""
        turn = StartTurn(self, whose)
        self._waiting[turn] = urgency
        try:
            while True:
                self._hand_out()
                if turn.is_due.is_set():
                    return turn
                with anyio.move_on_at(min(each.ends_at for each in self._running)):
                    await turn.is_due.wait()
        except BaseException:
            self.end(turn)
            raise

    def end(self, turn: StartTurn) -> None:
        """Let the next server start."""
        self._waiting.pop(turn, None)
        if turn in self._running:
            self._running.remove(turn)
            self._hand_out()

    def _hand_out(self) -> None:
        if not self._waiting:
            self._had.clear()
        now = anyio.current_time()
        self._running = [each for each in self._running if each.ends_at > now]
        while self._waiting and len(self._running) < AT_ONCE:
            # Among those with equally many waiting calls, the client with the fewest starts; of one client, the latest
            # start: it is needed now, unlike one begun before a gateway was lost.
            turn = max(reversed(self._waiting), key=lambda each: (self._waiting[each](), -self._had[each.whose]))
            del self._waiting[turn]
            self._had[turn.whose] += 1
            turn.ends_at = now + START_SECONDS
            self._running.append(turn)
            turn.is_due.set()


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens connections to one upstream, in the folder and with the variables of `working_directory`."""

    effective: EffectiveSettings
    open_streams: OpenStreams
    logs_dir: Path
    authorization: Authorization | None
    working_directory: WorkingDirectory
    starts: Starts
    installs: Installs | None = None

    async def turn(self, urgency: Urgency, whose: str = EVERYBODY) -> StartTurn:
        """Wait until the server may be started, if it is a local process."""
        if self.effective.definition.resolved_transport is not Transport.STDIO:
            return StartTurn(self.starts)
        return await self.starts.turn(urgency, whose)

    def connection_facts(self) -> ConnectionFacts:
        """Create the object that collects the HTTP facts of a new connection."""
        return ConnectionFacts(
            self.effective.defaults.max_message_bytes,
            self.authorization,
            denied_extensions=self.effective.denied_extensions,
        )

    def open(
        self,
        spoken: NegotiatedProtocol,
        questions: Questions,
        http: ConnectionFacts,
        header_maps: HeaderMaps,
        on_notice: OnNotice,
    ) -> AbstractAsyncContextManager[Connection]:
        """Open one more connection, preferably in this era and version; questions of the server go to `questions`."""
        return open_connection(
            self.effective.upstream_id,
            self.effective.definition,
            open_streams=self.open_streams,
            working_directory=self.working_directory,
            spoken=spoken,
            logs_dir=self.logs_dir,
            connect_timeout=self.effective.connect_timeout
            if http.install is None
            else self.effective.first_start_timeout,
            header_maps=header_maps,
            on_notice=on_notice,
            http=http,
            questions=questions,
        )
