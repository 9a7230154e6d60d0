"""Replicas: the serving processes that share a Redis server, and what each publishes about itself.

Each writes an entry with its URL, version and configuration every two seconds. If an entry expires, its replica is
gone. A worker of `pml serve --workers` is a replica, too.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import anyio
from cachetools import TTLCache
from pydantic import TypeAdapter

from pml_gateway.errors import SharedStateError
from pml_gateway.log import get_logger
from pml_gateway.signal import Signal
from pml_gateway.storage.change_feed import ChangeFeed
from pml_gateway.storage.documents import readable
from pml_gateway.storage.redis import (
    MAX_PAUSE_SECONDS,
    OPERATION_SECONDS,
    REPLICAS,
    RedisServer,
    read_state,
    replica_name,
)
from pml_gateway.text import escaped, span
from pml_gateway.types import JsonObject

if TYPE_CHECKING:
    from redis.asyncio import Redis

logger = get_logger(__name__)

HEARTBEAT_SECONDS = 2.0
"""Time between two heartbeats; after each, the entries of the others are read."""

EXPIRY_SECONDS = 8.0
"""Time without a heartbeat after which a replica is gone: three in a row may be missed."""

RETURN_SECONDS = MAX_PAUSE_SECONDS + OPERATION_SECONDS + HEARTBEAT_SECONDS
"""Time after an outage in which all replicas send a heartbeat again: until then, none that was known is gone."""

MAX_AGE_SECONDS = EXPIRY_SECONDS + 60.0
"""Age of an entry by whose address a replica is still reached, with clocks that differ."""

ABSENT_SECONDS = 1.0
MAX_ABSENT = 1000
"""Time for which an id that was not found is not searched again, and the number of such ids."""

NAMES_SECONDS = 60.0
"""Time after the last heartbeat of any replica in which the ids expire."""

TOPIC = "replicas"

ID_BYTES = 6

_OF_REPLICA = re.compile(f"([0-9a-f]{{{2 * ID_BYTES}}})~")
"""Beginning of a state of what waits in the memory of the replica with this id."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One serving process, as it describes itself to the others."""

    id: str
    url: str | None
    """Where the others reach it, without a path; None while it does not serve HTTP."""
    version: str
    configuration: str
    """Digest of the settings that all replicas should have in common."""
    started_at: float
    is_draining: bool = False
    stdio_servers: int = 0
    """Servers of which it runs processes of its own."""


@dataclass(frozen=True, slots=True)
class _Entry:
    replica: Replica
    at: float

    @property
    def age(self) -> float:
        """Return its seconds; those of another clock may be negative."""
        return time.time() - self.at

    def current(self) -> Replica:
        """Return the replica, without its URL if the entry is old.

        Somebody else may have put it back, and another process may be at its address now.
        """
        return self.replica if abs(self.age) < MAX_AGE_SECONDS else replace(self.replica, url=None)


_ENTRY = TypeAdapter(_Entry)

Facts = Callable[[], tuple[str, int]]
"""Returns the digest of the configuration, and the number of stdio servers, as they are now."""


class Replicas:
    """This process among those that share a Redis server."""

    def __init__(self, server: RedisServer, feed: ChangeFeed, version: str, facts: Facts) -> None:
        self.server = server
        self.feed = feed
        self._facts = facts
        configuration, stdio_servers = facts()
        self.own = Replica(
            secrets.token_hex(ID_BYTES), None, version, configuration, time.time(), stdio_servers=stdio_servers
        )
        self._others: dict[str, Replica] = {}
        self._absent: TTLCache[str, None] = TTLCache(MAX_ABSENT, ABSENT_SECONDS)
        self._differing: set[tuple[str, str]] = set()
        self._warned: set[tuple[str, str]] = set()
        self._unusable: set[str] = set()
        """Ids of replicas whose entries were encrypted with another key, or written by another clock."""
        self._due = anyio.Event()
        self._others_read = Signal()
        self._heartbeats = anyio.Lock()
        self._has_entry = False
        self._was_disconnected = False
        self._all_are_back_at = 0.0

    @property
    def known(self) -> tuple[Replica, ...]:
        """Return all replicas as last read, this one first."""
        return (self.own, *self._others.values())

    def has_other_clock(self, replica: Replica) -> bool:
        """Return True if a replica is not asked for its sessions, as its clock and that of this machine differ."""
        return replica.url is None and replica.id in self._unusable

    async def all(self) -> tuple[Replica, ...]:
        """Return all replicas as they are now, this one first; in an outage, as last read."""
        with suppress(SharedStateError):
            await self._read_others()
        return self.known

    async def find(self, id_: str) -> Replica | None:
        """Return a living replica; most ids are found without asking Redis.

        Raises:
            SharedStateError: it is not known whether the replica lives.
        """
        if id_ == self.own.id:
            return self.own
        known = self._others.get(id_)
        if id_ in self._absent or (known is not None and known.url is not None):
            return known
        # Unlike GET, MGET does not fail if others have left a value of another type.
        [sealed] = await self.server.run(lambda redis: redis.mget([replica_name(id_)]))
        found = None if sealed is None else self._replica_in(id_, sealed)
        if found is None and not self._are_all_back:
            raise SharedStateError("Redis was away a moment ago, and not all replicas may have come back")
        if found is None:
            self._absent[id_] = None
        else:
            self._others[id_] = found
        return found

    @property
    def _are_all_back(self) -> bool:
        """Return False while a replica without an entry may yet send a heartbeat."""
        return not self._was_disconnected and time.monotonic() >= self._all_are_back_at

    async def until_gone(self, id_: str) -> None:
        """Wait until a replica that was found lives no more."""
        await self._others_read.until(lambda: id_ not in self._others)

    async def serve_at(self, url: str) -> None:
        """Tell the others where this replica is reached; without Redis, they learn it later."""
        self._publish(replace(self.own, url=url))
        with suppress(SharedStateError):
            await self._send_heartbeat()

    def drain(self) -> None:
        """Tell the others that this replica is about to end."""
        self._publish(replace(self.own, is_draining=True))

    def _publish(self, own: Replica) -> None:
        self.own = own
        self._due.set()

    async def run(self) -> None:
        """Send heartbeats and read the entries of the others, for as long as the owner's task group lives."""
        published: Replica | None = None
        try:
            with self.feed.subscribed(TOPIC, lambda _: self._due.set()):
                while True:
                    self._due = anyio.Event()
                    configuration, stdio_servers = self._facts()
                    self.own = replace(self.own, configuration=configuration, stdio_servers=stdio_servers)
                    try:
                        own = await self._send_heartbeat()
                        if own != published:
                            await self.feed.publish(TOPIC, own.id)
                            published = own
                        await self._read_others()
                        self._warn_of_differences()
                    except SharedStateError:
                        self._was_disconnected = True
                    with anyio.move_on_after(HEARTBEAT_SECONDS):
                        await self._due.wait()
        finally:
            with anyio.move_on_after(OPERATION_SECONDS, shield=True):
                await self._leave()

    async def _send_heartbeat(self) -> Replica:
        """Write the entry of this replica, and return it as it was written."""
        # One after the other: an older entry must not replace a newer one.
        async with self._heartbeats:
            own = self.own
            name = replica_name(own.id)
            sealed = self.server.seal(name, {"replica": asdict(own), "at": time.time()})
            is_new = 0

            async def write(redis: Redis) -> None:
                async with redis.pipeline(transaction=False) as commands:
                    commands.set(name, sealed, px=int(EXPIRY_SECONDS * 1000))
                    commands.sadd(REPLICAS, own.id)
                    commands.pexpire(REPLICAS, int(NAMES_SECONDS * 1000))
                    nonlocal is_new
                    _, is_new, _ = await commands.execute()

            await self.server.run(write)
            if is_new and self._has_entry:
                # Redis has lost what it had, perhaps without an outage that was noticed here.
                self._was_disconnected = True
                self.feed.resync()
            self._has_entry = True
            return own

    async def _read_others(self) -> None:
        # Take turns with heartbeats: the answer to one may be the first to say that Redis has lost everything.
        async with self._heartbeats:
            ids: Any = await self.server.run(lambda redis: redis.smembers(REPLICAS))
            # Also those that were found before: a name may be missing until the next heartbeat.
            others = sorted({each.decode(errors="replace") for each in ids}.union(self._others) - {self.own.id})
            names = [replica_name(id_) for id_ in (self.own.id, *others)]
            own, *found = await self.server.run(lambda redis: redis.mget(names))
            gone = [id_ for id_, sealed in zip(others, found, strict=True) if sealed is None]
            read = (
                self._replica_in(id_, sealed) for id_, sealed in zip(others, found, strict=True) if sealed is not None
            )
            if self._was_disconnected or (self._has_entry and (own is None or self.own.id.encode() not in ids)):
                self._was_disconnected = False
                self._all_are_back_at = time.monotonic() + RETURN_SECONDS
            are_back = self._are_all_back
            found_meanwhile = {id_: each for id_, each in self._others.items() if id_ not in others}
            before = found_meanwhile if are_back else self._others
            self._others = before | {each.id: each for each in read if each is not None}
            self._others_read.set()
            if gone and are_back:
                await self.server.run(lambda redis: redis.srem(REPLICAS, *gone))

    def _replica_in(self, id_: str, sealed: bytes | str) -> Replica | None:
        if not self.server.is_sealed_by_this(replica_name(id_), sealed):
            # It started while Redis did not answer, and shares nothing with this one.
            self._complain(id_, "has another storage.key, or its entry was forged: give all the same")
            return None
        entry = _entry(self.server.unseal(replica_name(id_), sealed))
        if entry is None:
            return None
        found = entry.current()
        if found.url != entry.replica.url:
            clocks = f"its clock and that of this machine differ by {span(abs(entry.age))}, or its entry was put back"
            self._complain(id_, f"is not asked for its sessions: {clocks}: set the clocks of all machines by NTP")
        return found

    def _complain(self, id_: str, words: str) -> None:
        if id_ not in self._unusable:
            self._unusable = {id_, *self._unusable} if len(self._unusable) < MAX_ABSENT else {id_}
            logger.error("replica %s %s", escaped(id_), words)

    def _warn_of_differences(self) -> None:
        """Warn once of each replica that differs two times in a row: while all change, they differ for a moment."""
        differing = set()
        # What serves no HTTP may be a command, or a client's own gateway.
        for each in (each for each in self._others.values() if each.url is not None):
            if each.version != self.own.version:
                differing.add((each.id, f"it has version {each.version}, and this one {self.own.version}"))
            elif each.configuration != self.own.configuration:
                differing.add((each.id, "its configuration is not the same"))
        for id_, difference in differing & self._differing - self._warned:
            logger.warning("replica %s at %s differs: %s", id_, self._others[id_].url, difference)
        self._warned = differing & (self._warned | self._differing)
        self._differing = differing

    async def _leave(self) -> None:
        with suppress(SharedStateError):
            await self.server.run(lambda redis: redis.delete(replica_name(self.own.id)))
            await self.feed.publish(TOPIC, self.own.id)


def with_replica(state: str, replica_id: str) -> str:
    """Return the state of what waits in the memory of a replica: requests with it are passed on to that replica."""
    return f"{replica_id}~{state}"


def without_replica(state: str) -> tuple[str, str | None]:
    """Return a state without the replica in whose memory it waits, and the replica's id; None if any may serve it."""
    found = _OF_REPLICA.match(state)
    return (state, None) if found is None else (state[found.end() :], found[1])


async def living_replicas(server: RedisServer) -> list[tuple[Replica, float]]:
    """Return the living replicas, by their ids, each with the age of its entry in seconds.

    Raises:
        SharedStateError: Redis does not answer.
    """
    _, *entries = await server.run(read_state)
    values = [server.unseal(name.decode(errors="replace"), sealed) for name, sealed in entries]
    living = ((each.replica, each.age) for each in map(_entry, values) if each is not None)
    return sorted(living, key=lambda found: found[0].id)


def _entry(value: JsonObject | None) -> _Entry | None:
    """Return the entry of a replica as another one wrote it; None for one that cannot be read."""
    return None if value is None else readable("the entry of a replica", lambda: _ENTRY.validate_python(value))
