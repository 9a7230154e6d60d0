"""Values in Redis that belong to somebody: found by a secret id, listed by owner, so many of one owner at most."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from pml_gateway.storage.redis import MAX_TTL, PREFIX, RedisServer
from pml_gateway.types import JsonObject

_PUT = """
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[4])
redis.call('ZADD', KEYS[1], ARGV[5], ARGV[1])
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
local excess = redis.call('ZCARD', KEYS[1]) - tonumber(ARGV[6])
if excess > 0 then
  for _, digest in ipairs(redis.call('ZRANGE', KEYS[1], 0, excess - 1)) do
    redis.call('DEL', ARGV[7] .. digest)
    redis.call('ZREM', KEYS[1], digest)
  end
end
return 1
"""
"""For an owner's index and a value: the digest of its id, the value, its milliseconds, now, its end, the maximum for an
owner, and the beginning of the names of values. The values that would end first make room."""


class OwnedValues:
    """The values of one collection. In Redis, ids and owners are digests, and values are encrypted."""

    def __init__(self, server: RedisServer, collection: str, most: int) -> None:
        """Keep `most` values of one owner."""
        self._server = server
        self._collection = collection
        self._start = f"{PREFIX}:{collection}:"
        self._most = most
        self._put = server.script(_PUT)

    def digest(self, id_: str) -> str:
        """Return the name of an id that is no secret, also for news."""
        return hashlib.sha256(f"{self._collection}\n{id_}".encode("utf-8", "surrogatepass")).hexdigest()

    async def put(self, owner: str, id_: str, value: JsonObject, seconds: float) -> None:
        """Keep a value for so many seconds, a day at most; those of the owner that end first make room.

        Raises:
            SharedStateError: Redis does not answer.
        """
        digest, now = self.digest(id_), int(time.time() * 1000)
        name, milliseconds = self._name(digest), max(int(min(seconds, MAX_TTL) * 1000), 1)
        sealed = self._server.seal(name, value)
        keys = [self._index(owner), name]
        arguments: list[str | bytes | int] = [
            digest,
            sealed,
            milliseconds,
            now,
            now + milliseconds,
            self._most,
            self._start,
        ]
        await self._server.run(lambda _: self._put(keys=keys, args=arguments))

    async def get(self, digest: str) -> JsonObject | None:
        """Return the value of an id, by its digest."""
        name = self._name(digest)
        sealed = await self._server.run(lambda redis: redis.get(name))
        return None if sealed is None else self._server.unseal(name, sealed)

    async def take(self, owner: str, id_: str) -> JsonObject | None:
        """Remove and return a value; of several that take it at once, one gets it."""
        digest = self.digest(id_)
        name, index = self._name(digest), self._index(owner)
        sealed = await self._server.run(lambda redis: redis.getdel(name))
        if sealed is None:
            return None
        value = self._server.unseal(name, sealed)
        await self._server.run(lambda redis: redis.zrem(index, digest))
        return value

    async def of(self, owner: str) -> list[JsonObject]:
        """Return the values of an owner, those that end first at the beginning."""
        index = self._index(owner)
        digests: Any = await self._server.run(lambda redis: redis.zrange(index, 0, -1))
        if not digests:
            return []
        names = [self._name(digest.decode()) for digest in digests]
        sealed = await self._server.run(lambda redis: redis.mget(names))
        values = (self._server.unseal(name, each) for name, each in zip(names, sealed, strict=True) if each is not None)
        return [value for value in values if value is not None]

    def _name(self, digest: str) -> str:
        return f"{self._start}{digest}"

    def _index(self, owner: str) -> str:
        return f"{PREFIX}:{self._collection}-of:{self.digest(owner)}"
