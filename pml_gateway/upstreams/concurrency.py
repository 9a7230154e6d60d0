"""How many calls of one upstream run and wait: bounded, counted, fair to every client, and waited for at the end."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio

from pml_gateway.errors import UpstreamBusyError, UpstreamTimeoutError
from pml_gateway.shares import OWN, Holdings, is_anonymous
from pml_gateway.signal import Signal


class _Turn:
    """A call that waits for a place."""

    __slots__ = ("decided", "is_refused", "share")

    def __init__(self, share: str) -> None:
        self.share = share
        self.is_refused = False
        self.decided = anyio.Event()


class _Places:
    """The places, and who waits for one: the next is given to the client that has fewest."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.free = count
        self.waiting: Holdings[_Turn] = Holdings()
        self._running: Counter[str] = Counter()
        self._turns: dict[str, deque[_Turn]] = {}

    def take(self, share: str) -> None:
        """Take a free place."""
        self.free -= 1
        self._running[share] += 1

    def give_back(self, share: str) -> None:
        """Let the next one have a place."""
        self.free += 1
        self._running[share] -= 1
        if not self._running[share]:
            del self._running[share]
        self._hand_out()

    async def wait(self, share: str, *, had_place: bool = False) -> bool:
        """Wait for a place; False where a call of another client needed the room to wait more.

        A call that had a place before is the next of its client, and is not refused.
        """
        if self.free:
            self.take(share)
            return True
        turn = _Turn(share)
        turns = self._turns.setdefault(share, deque())
        if had_place:
            turns.appendleft(turn)
        else:
            turns.append(turn)
            self.waiting.note(turn, share)
        try:
            await turn.decided.wait()
        except BaseException:
            if not turn.decided.is_set():
                self._leave(turn)
            elif not turn.is_refused:
                self.give_back(share)
            raise
        return not turn.is_refused

    def make_room(self, share: str) -> bool:
        """Refuse the latest call of the client of which most wait, if fewer of this one's do; whether one was."""
        most = self.waiting.largest()
        if most is None or most == share:
            return False
        takes_half_from_anonymous = is_anonymous(most) and not is_anonymous(share)
        if self.waiting.held_by(share) + 1 >= self.waiting.held_by(most) and not takes_half_from_anonymous:
            return False
        turn = self.waiting.newest_of(most)
        assert turn is not None
        turn.is_refused = True
        self._leave(turn)
        turn.decided.set()
        return True

    def _hand_out(self) -> None:
        running = self._running
        while self.free and self._turns:
            # Those without a key have half of the places together where others wait.
            is_half = 2 * sum(running[share] for share in running if is_anonymous(share)) >= self._count
            share = min(self._turns, key=lambda one: (is_half and is_anonymous(one), running.get(one, 0)))
            turn = self._turns[share][0]
            self._leave(turn)
            if share in self._turns:
                # Whose turn it was comes last among those who have as many.
                self._turns[share] = self._turns.pop(share)
            self.take(share)
            turn.decided.set()

    def _leave(self, turn: _Turn) -> None:
        turns = self._turns[turn.share]
        turns.remove(turn)
        if not turns:
            del self._turns[turn.share]
        self.waiting.forget(turn)


class Permit:
    """One taken place, which may be lent while its call waits for a person."""

    def __init__(self, places: _Places, share: str) -> None:
        self._places = places
        self._share = share
        self._loans = 0
        self._is_held = True
        self._is_over = False

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[None]:
        """Let other calls run for the length of this context; contexts may overlap."""
        self._loans += 1
        self._release()
        try:
            yield
        finally:
            self._loans -= 1
            if not self._loans and not self._is_over:
                await self._places.wait(self._share, had_place=True)
                if self._loans or self._is_over or self._is_held:
                    self._places.give_back(self._share)
                else:
                    self._is_held = True

    def give_up(self) -> None:
        """The call is over."""
        self._is_over = True
        self._release()

    def _release(self) -> None:
        if self._is_held:
            self._is_held = False
            self._places.give_back(self._share)


class CallLimit:
    """Lets a number of calls run, a number of them wait, and refuses the rest at once.

    A client that is alone may take every place and the whole queue. Of several, the one with the fewest running calls
    is served next; where the queue is full, it gives up the latest call of the one of which most wait.
    """

    def __init__(self, upstream_id: str, max_concurrent: int, max_queue: int) -> None:
        self._upstream_id = upstream_id
        self._places = _Places(max_concurrent)
        self._max_concurrent = max_concurrent
        self._max_queue = max_queue
        self._changed = Signal()

    @property
    def waiting(self) -> int:
        """Calls that wait for a place."""
        return len(self._places.waiting)

    @property
    def is_unused(self) -> bool:
        """Whether no call runs or waits."""
        return not len(self._places.waiting) and self._places.free == self._max_concurrent

    @asynccontextmanager
    async def taken(
        self, deadline: float, before_waiting: Callable[[], None] = lambda: None, share: str = OWN
    ) -> AsyncIterator[Permit]:
        """One place, held for the length of this context.

        Args:
            deadline: ends the wait for it (`anyio.current_time`).
            before_waiting: is called where no place is free, and raises where the wait would be in vain.
            share: whose call it is.

        Raises:
            UpstreamBusyError: as many calls wait as may; nothing was sent.
            UpstreamTimeoutError: no place was free in time; nothing was sent.
        """
        if self._places.free and anyio.current_time() < deadline:
            self._places.take(share)
        else:
            before_waiting()
            await self._wait(deadline, share)
        permit = Permit(self._places, share)
        try:
            yield permit
        finally:
            permit.give_up()
            self._changed.set()

    async def until_unused(self, timeout: float) -> None:
        """Wait until no call runs or waits, at most `timeout` seconds."""
        with anyio.move_on_after(timeout):
            await self._changed.until(lambda: self.is_unused)

    async def _wait(self, deadline: float, share: str) -> None:
        waiting = self.waiting
        late = UpstreamTimeoutError(
            f"{self._upstream_id}: the call waited for {self._max_concurrent} others until its deadline",
            hint=f"try again, or raise servers.{self._upstream_id}.max_concurrent",
            details={"executed": "no"},
        )
        if anyio.current_time() >= deadline:
            raise late
        if waiting >= self._max_queue and not self._places.make_room(share):
            raise self._busy(waiting)
        has_place = False
        try:
            with anyio.move_on_at(deadline) as patience:
                has_place = await self._places.wait(share)
        finally:
            self._changed.set()
        if patience.cancelled_caught:
            raise late
        if not has_place:
            raise self._busy(waiting)

    def _busy(self, waiting: int) -> UpstreamBusyError:
        return UpstreamBusyError(
            f"{self._upstream_id}: {self._max_concurrent} calls run and {waiting} wait already",
            hint=f"try again, or raise servers.{self._upstream_id}.max_concurrent or max_queue",
            details={
                "running": self._max_concurrent,
                "waiting": waiting,
                "max_queue": self._max_queue,
                "executed": "no",
            },
        )


class Activity:
    """What an upstream's connection is used for right now."""

    def __init__(self, limit: CallLimit) -> None:
        self.limit = limit
        self.in_flight = 0
        self.last_call_seconds: float | None = None
        self._last_used = time.monotonic()
        self._answered = Signal()

    @property
    def is_unused(self) -> bool:
        """Whether no call runs or waits."""
        return self.limit.is_unused

    @property
    def idle_seconds(self) -> float:
        """Seconds since a call or a connection began or ended."""
        return time.monotonic() - self._last_used

    def touch(self) -> None:
        """Begin to count idle seconds anew."""
        self._last_used = time.monotonic()

    @contextmanager
    def sent(self) -> Iterator[None]:
        """Count one call that was sent and is not yet answered; its time is kept if it is answered."""
        started = time.monotonic()
        self.in_flight += 1
        try:
            yield
            self.last_call_seconds = time.monotonic() - started
        finally:
            self.in_flight -= 1
            self._last_used = time.monotonic()
            self._answered.set()

    async def drain(self, timeout: float) -> None:
        """Wait until no call is in flight, at most `timeout` seconds."""
        with anyio.move_on_after(timeout):
            await self._answered.until(lambda: self.in_flight == 0)
