"""One Redis server, in which several gateways (replicas) keep what they share.

`RedisServer` sends commands. `RedisValues` keeps encrypted values by collection and key. `RedisHealth` notes failures:
a server that failed is left alone for a while, so that not every call waits for it.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import anyio
import anyio.to_thread
from cachetools import LRUCache

from pml_gateway.errors import ConfigurationError, SharedStateError
from pml_gateway.json_text.pieces import exceeds
from pml_gateway.log import get_logger
from pml_gateway.storage.memory import KeyValues
from pml_gateway.storage.redis_url import (
    MAX_CONNECTIONS,
    address_of,
    check_shared_storage,
    connection_pool,
    resolved_key,
    resolved_url,
)
from pml_gateway.storage.sealing import Sealing
from pml_gateway.text import counted
from pml_gateway.types import JsonObject

if TYPE_CHECKING:
    from redis import Redis as SyncRedis
    from redis.asyncio import ConnectionPool, Redis

logger = get_logger(__name__)

PREFIX = "{pml}"
"""Start of every key; the braces keep all keys on one node of a Redis cluster, as scripts need it."""

FORMAT = "2"
"""Version of all keys and values: a replica that writes another one does not start. Raise it with each change of what
is written; `tests/storage/shared_format.txt` lists that."""

FORMAT_NAME = f"{PREFIX}:format"

REPLICAS = f"{PREFIX}:replicas"
"""The ids of all replicas, those that have ended lately included."""


def replica_name(id_: str) -> str:
    """Return the name of a replica's entry, which expires unless it is renewed."""
    return f"{PREFIX}:replica:{id_}"


OPERATION_SECONDS = 3.0
"""Time limit in seconds for one command, its connection included: the first call after a failure waits for it."""

PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 8.0
"""Shortest and longest pause after a failure, in which no command is tried. It doubles with each further failure. From
the second on it lasts at least as long as the failed command took, so that a silent server seldom holds anybody up."""


REFUSAL_SECONDS = 60.0
"""Time for which a server that refused a command is said to do so; it may do the commands in between."""

MAX_TTL = 24 * 3600.0
"""Longest time in seconds that a value is kept; a value that is given none is kept as long."""

SEALED_AT_ONCE = 64 * 1024
"""Characters that are encrypted on the event loop, in half a millisecond; more are compressed as well, in a thread."""

ResultT = TypeVar("ResultT")

_REPLACE = """
local found = redis.call('GET', KEYS[1]) or ''
if found ~= ARGV[1] then return found == ARGV[2] and 1 or 0 end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  if ARGV[3] == '' then
    redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL')
  else
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  end
end
return 1
"""
"""Replace a value if it is the one that was read. An empty string is no value, or an expiry that stays.

A command is sent again if its answer is lost, and then finds what it has written itself: no two values are the same."""

_STATE = """
redis.call('SET', KEYS[1], ARGV[1], 'NX')
local found = {redis.call('GET', KEYS[1])}
for _, id in ipairs(redis.call('SMEMBERS', KEYS[2])) do
  local name = ARGV[2] .. id
  if redis.call('PTTL', name) > 0 and redis.call('TYPE', name).ok == 'string' then
    table.insert(found, {name, redis.call('GET', name)})
  end
end
return found
"""
"""Write the format of a server that has none; return its format, and the names and entries of the replicas that run.

What never expires was not written by a replica."""

MAX_SEEN = 256
SEEN_BYTES = 16 * 1024
"""Number of values that are remembered as they were last seen in Redis, and the maximum bytes of each."""

MAX_CHANGES = 50
"""Attempts at a change that others come before."""


StorageOutcome = Literal["ok", "failed", "not_sent"]
"""Outcome of a command; one is not sent while a server that failed is left alone."""

REFUSED_LOGIN = "it refuses the user or password"
NO_SUCH_DATABASE = "it has no database of this number"
UNTRUSTED_CERTIFICATE = "its certificate is not trusted, or is that of another host"
NO_CONNECTION = "no connection"
UNKNOWN_HOST = "no address is known for its host name"

_FAILURES = {
    "AuthenticationError": REFUSED_LOGIN,
    "AuthenticationWrongNumberOfArgsError": REFUSED_LOGIN,
    "SSLCertVerificationError": UNTRUSTED_CERTIFICATE,
    "gaierror": UNKNOWN_HOST,
    "InvalidResponse": "what answers there is not Redis",
    "AuthorizationError": "its user may not do that",
    "NoPermissionError": "its user may not do that",
    "OutOfMemoryError": "it has no memory left",
    "ReadOnlyError": "it is a replica of Redis that only reads",
    "BusyLoadingError": "it is loading its data",
    "TimeoutError": f"no answer in {OPERATION_SECONDS:g} s",
    "ConnectionError": NO_CONNECTION,
    "RuntimeError": NO_CONNECTION,
}

OTHER_TYPE = "a key that pml uses has a value of another type"
NOT_SAVED = "it cannot save its data"

_REFUSALS = {"WRONGTYPE": OTHER_TYPE, "MISCONF": NOT_SAVED, "NOREPLICAS": "too few replicas of it are connected"}
"""The reasons of errors that redis-py gives no class of their own, by the code that Redis sends first."""


def failure_in_words(error: Exception) -> str:
    """Return why a command failed; not the text of the error, which may quote what was sent."""
    words = ""
    each: BaseException | None = error
    # redis-py raises a plain ConnectionError for what else fails while it connects.
    while each is not None and words in ("", NO_CONNECTION):
        if "DB index" in str(each):
            return NO_SUCH_DATABASE
        name = next((base.__name__ for base in type(each).__mro__ if base.__name__ in _FAILURES), None)
        words = words if name is None else _FAILURES[name]
        each = each.__cause__ or each.__context__
    return words or _REFUSALS.get(str(error).partition(" ")[0], type(error).__name__)


def read_state(redis: Redis | SyncRedis) -> Any:
    """Ask for the format of a server's state, and for the names and entries of the replicas that run."""
    return redis.eval(_STATE, 2, FORMAT_NAME, REPLICAS, FORMAT, replica_name(""))


def refuse_other_state(sealing: Sealing, state: Any) -> None:
    """Refuse the state of a server that cannot be shared, as `read_state` gives it.

    Raises:
        ConfigurationError: the format is another one, or no replica wrote its entry with this `storage.key`.
    """
    found, *entries = state
    shown = found[:20].decode(errors="replace")
    if shown != FORMAT:
        raise ConfigurationError(
            f"the state at storage.url has format {shown!r}, and this pml writes {FORMAT}",
            hint="use the same version of pml everywhere, or another database: redis://host/1",
        )
    if entries and not any(
        sealing.is_sealed_by_this(name.decode(errors="replace"), sealed) for name, sealed in entries
    ):
        use = "uses" if len(entries) == 1 else "use"
        raise ConfigurationError(
            f"{counted(len(entries), 'gateway')} at storage.url {use} another storage.key",
            hint="give all the same; to change it, stop all of them first",
        )


ANY_SERVER = "the Redis server of storage.url"


def named(address: str) -> str:
    """Return the name of a server for the operator."""
    return f"Redis at {address} (storage.url)"


class RedisHealth:
    """The failures of one Redis server, which is left alone for a while after each; used from threads as well.

    One that refuses a command, as without memory, is not left alone: it answers at once, and may do all others.
    """

    def __init__(self, server: str = ANY_SERVER, tell: Callable[[str], None] = lambda _: None) -> None:
        """Call the server by this name in errors; `tell` is given the words when it begins to fail, and when it ends.

        Errors reach clients, who are not told the address.
        """
        self._server = server
        self._tell = tell
        self._failures = 0
        self._resumes_at = 0.0
        self._failing_since: float | None = None
        self._failure = ""
        self._refused_at = -REFUSAL_SECONDS
        self._failed_at = -math.inf

    @property
    def failure(self) -> str:
        """Return why it fails, or what it refused in the last minute, in words; empty while it does all."""
        return self._failure if self._failures or self._refused_lately else ""

    @property
    def failing_seconds(self) -> float | None:
        """Return for how long it has failed or refused; None while it does all."""
        if not self.failure:
            return None
        return time.monotonic() - (self._refused_at if self._failing_since is None else self._failing_since)

    def has_failed_within(self, seconds: float) -> bool:
        """Return True if it failed or refused a command lately: what is missing there may be known elsewhere."""
        return time.monotonic() - self._failed_at < seconds

    @property
    def _refused_lately(self) -> bool:
        return time.monotonic() - self._refused_at < REFUSAL_SECONDS

    @contextmanager
    def command(self, hint: str = "") -> Iterator[None]:
        """Run one command in this context, and note its outcome.

        Raises:
            SharedStateError: the server does not answer or refuses the command, or failed a moment ago. It has the
                given hint.
        """
        # Importing it takes a tenth of a second.
        from redis.exceptions import RedisError, ResponseError

        began = time.monotonic()
        if began < self._resumes_at:
            raise SharedStateError(f"{self._server} failed a moment ago: {self._failure}", hint=hint)
        try:
            yield
        # uvloop raises RuntimeError for a write to a connection that the server has just closed.
        except (RedisError, OSError, TimeoutError, RuntimeError) as error:
            self._failed_at = time.monotonic()
            words = failure_in_words(error)
            if isinstance(error, ResponseError):
                self._note_refusal(words)
            else:
                self._note_failure(words, self._failed_at - began)
            raise SharedStateError(f"{self._server} failed: {words}", hint=hint) from error
        if self._failures:
            self._failures, self._failing_since = 0, None
            self._tell("answers again")

    def _note_refusal(self, words: str) -> None:
        if not self._refused_lately:
            self._failing_since = time.monotonic()
            self._tell(f"refuses commands: {words}")
        self._failure, self._refused_at = words, time.monotonic()

    def _note_failure(self, words: str, seconds: float) -> None:
        self._failure = words
        if time.monotonic() < self._resumes_at:
            # Of commands that were under way at once, the first failure counts.
            return
        if not self._failures:
            self._failing_since = time.monotonic()
            self._tell(f"failed: {words}")
        # A power of an outage of hours is too large for a float.
        pause = min(PAUSE_SECONDS * 2.0 ** min(self._failures, 16), MAX_PAUSE_SECONDS)
        # Not all replicas at the same moment. The first may be no failure of the server: this process stood still.
        self._resumes_at = time.monotonic() + max(pause * random.uniform(0.5, 1), seconds if self._failures else 0)
        self._failures += 1


class RedisServer(Sealing):
    """One Redis server, to which commands are sent from an event loop.

    Each command has a client of one connection to itself: handing out connections takes redis-py a third of the time.
    """

    def __init__(self, pool: ConnectionPool, address: str, key: str) -> None:
        super().__init__(key)
        self._pool = pool
        self._clients: list[Redis] = []
        self._idle = [self._new_client()]
        self._free = anyio.Semaphore(MAX_CONNECTIONS, fast_acquire=True)
        self.address = address
        self.health = RedisHealth(tell=partial(logger.warning, "%s %s", named(address)))
        self.observe: Callable[[StorageOutcome, float], None] = lambda *_: None
        """Called with the outcome of each command, and its seconds."""

    async def run(self, command: Callable[[Redis], Awaitable[ResultT]], *, waits: bool = False) -> ResultT:
        """Run a command; one that `waits` for something to happen is not observed.

        Raises:
            SharedStateError: the server does not answer, or refuses the command.
        """
        began = time.monotonic()
        outcome: StorageOutcome = "not_sent"
        try:
            with self.health.command("try again later"):
                outcome = "failed"
                with anyio.fail_after(OPERATION_SECONDS):
                    result = await self._with_client(command)
        except SharedStateError:
            self.observe(outcome, time.monotonic() - began)
            raise
        if not waits:
            self.observe("ok", time.monotonic() - began)
        return result

    async def _with_client(self, command: Callable[[Redis], Awaitable[ResultT]]) -> ResultT:
        async with self._free:
            client = self._idle.pop() if self._idle else self._new_client()
            try:
                return await command(client)
            finally:
                self._idle.append(client)

    def script(self, text: str) -> Callable[[Sequence[str], Sequence[str | bytes | int]], Awaitable[Any]]:
        """Return a function that runs a Lua script with keys and arguments. It fails as `run` does."""
        script = self._clients[0].register_script(text)
        return lambda keys, arguments: self.run(lambda redis: script(keys, arguments, client=redis))

    def _new_client(self) -> Redis:
        from pml_gateway.storage.redis_client import DirectRedis

        client = DirectRedis(connection_pool=self._pool, single_connection_client=True)
        self._clients.append(client)
        return client

    async def aclose(self) -> None:
        """Close the connections."""
        for client in self._clients:
            await client.aclose()
        await self._pool.aclose()

    async def sealed(self, name: str, value: JsonObject) -> bytes:
        """Encrypt a value; a large one in a thread, compressed."""
        is_large = exceeds(value, SEALED_AT_ONCE)
        seal = partial(self.seal, name, value, compressed=is_large)
        return await anyio.to_thread.run_sync(seal) if is_large else seal()

    async def unsealed(self, *found: tuple[str, bytes | str | None]) -> list[JsonObject | None]:
        """Return what was found under names, None for what is missing or of no use; read large values in a thread."""

        def unseal() -> list[JsonObject | None]:
            return [None if sealed is None else self.unseal(name, sealed) for name, sealed in found]

        is_large = sum(len(sealed or b"") for _, sealed in found) > SEALED_AT_ONCE
        return await anyio.to_thread.run_sync(unseal) if is_large else unseal()

    async def may_have_gone_back_at(self) -> float:
        """Return when the server started if it may have lost earlier changes; 0 if it logs all changes or does not say.

        Raises:
            SharedStateError: it does not answer.
        """
        from redis.exceptions import ResponseError

        async def ask(redis: Redis) -> float:
            try:
                server, persistence = await redis.info("server"), await redis.info("persistence")
            except ResponseError:
                # Its user may not ask.
                return 0.0
            if persistence.get("aof_enabled", 1) or "server_time_usec" not in server:
                return 0.0
            # It counts whole seconds: this is the latest moment at which it may have started.
            return float(server["server_time_usec"] // 1_000_000 - server["uptime_in_seconds"] + 1)

        return await self.run(ask)

    async def check_state(self) -> None:
        """Refuse to share state with gateways of another version or key; of a silent server, only say so.

        Raises:
            ConfigurationError: its state has another format, or the gateways that run have another `storage.key`.
        """
        try:
            state = await self.run(read_state)
        except SharedStateError:
            return
        refuse_other_state(self, state)


class RedisValues(KeyValues):
    """Values in Redis: encrypted, and kept for a day at most. Several are written together: all of them, or none."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self._replace = server.script(_REPLACE)
        self._seen: LRUCache[str, bytes | str] = LRUCache(MAX_SEEN)

    async def get(self, key: str, *, collection: str) -> JsonObject | None:
        return (await self.get_many([key], collection=collection))[0]

    async def get_many(self, keys: Sequence[str], *, collection: str) -> list[JsonObject | None]:
        if not keys:
            return []
        names = [value_name(collection, key) for key in keys]
        found = await self.server.run(lambda redis: redis.mget(names))
        pairs = list(zip(names, found, strict=True))
        for name, sealed in pairs:
            self._see(name, sealed)
        return await self.server.unsealed(*pairs)

    async def put(self, key: str, value: JsonObject, *, collection: str, ttl: float | None = None) -> None:
        name = value_name(collection, key)
        sealed, milliseconds = await self.server.sealed(name, value), _milliseconds(ttl)
        await self.server.run(lambda redis: redis.set(name, sealed, px=milliseconds))

    async def put_many(
        self, keys: Sequence[str], values: Sequence[JsonObject], *, collection: str, ttl: float | None = None
    ) -> None:
        milliseconds = _milliseconds(ttl)
        names = [value_name(collection, key) for key in keys]
        sealed = [await self.server.sealed(name, value) for name, value in zip(names, values, strict=True)]

        async def put(redis: Redis) -> None:
            async with redis.pipeline(transaction=True) as pipeline:
                for name, value in zip(names, sealed, strict=True):
                    pipeline.set(name, value, px=milliseconds)
                await pipeline.execute()

        await self.server.run(put)

    async def delete(self, key: str, *, collection: str) -> bool:
        return bool(await self.server.run(lambda redis: redis.delete(value_name(collection, key))))

    async def take(self, key: str, *, collection: str) -> JsonObject | None:
        """Delete a key and return its value; of several that take it at once, one gets it."""
        name = value_name(collection, key)
        [value] = await self.server.unsealed((name, await self.server.run(lambda redis: redis.getdel(name))))
        return value

    async def change(
        self,
        key: str,
        update: Callable[[JsonObject | None], JsonObject | None],
        *,
        collection: str,
        ttl: float | None = None,
        keeps_expiry: bool = False,
    ) -> JsonObject | None:
        """Replace a value by what `update` returns for it, and return that; None deletes it.

        With `keeps_expiry`, a value that is there lasts as long as before.

        `update` may be called several times, since another replica may change the value meanwhile; it leaves what it is
        given as it is. If it returns an equal value, nothing is written and the expiry stays.

        Raises:
            SharedStateError: Redis does not answer, or others change the value all the time.
        """
        name, milliseconds = value_name(collection, key), _milliseconds(ttl)
        # Mostly it is as it was last seen, which Redis compares; then it need not be read before.
        sealed = self._seen.pop(name, None)
        is_read = sealed is None
        for _ in range(MAX_CHANGES):
            if is_read:
                sealed = await self.server.run(lambda redis: redis.get(name))
            [before] = await self.server.unsealed((name, sealed))
            after = update(before)
            if after == before and is_read:
                self._see(name, sealed)
                return before
            if after != before:
                written = b"" if after is None else await self.server.sealed(name, after)
                lasts = b"" if keeps_expiry and sealed is not None else milliseconds
                numbers = [b"" if sealed is None else sealed, written, lasts]
                if await self._replace([name], numbers):
                    self._see(name, written)
                    return after
            is_read = True
        raise SharedStateError(f"a value of {collection} at storage.url is changed by others all the time")

    def _see(self, name: str, sealed: bytes | str | None) -> None:
        if sealed and len(sealed) <= SEEN_BYTES:
            self._seen[name] = sealed
        else:
            self._seen.pop(name, None)


def _milliseconds(ttl: float | None) -> int:
    return max(int(min(ttl or MAX_TTL, MAX_TTL) * 1000), 1)


def value_name(collection: str, key: str) -> str:
    """Return the name in Redis of a key of a collection."""
    return f"{PREFIX}:{collection}:{key}"


@asynccontextmanager
async def open_redis(url: str | None, key: str | None, environ: Mapping[str, str]) -> AsyncIterator[RedisServer | None]:
    """Open the server of a `storage.url`; its connections are closed with this context. None if there is none.

    Raises:
        ConfigurationError: the settings cannot be used, or the server has state of another version.
    """
    check_shared_storage(url, key, environ)
    if url is None:
        yield None
        return
    server = await anyio.to_thread.run_sync(_server, resolved_url(url, environ), resolved_key(key, environ))
    try:
        await server.check_state()
        yield server
    finally:
        with anyio.move_on_after(OPERATION_SECONDS, shield=True):
            await server.aclose()


def _server(url: str, key: str) -> RedisServer:
    return RedisServer(connection_pool(url, OPERATION_SECONDS), address_of(url), key)
