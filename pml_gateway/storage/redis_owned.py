"""Values in Redis that belong to one client each: found by a secret id, listed by owner, and limited for each owner.

Workflows that wait for an answer and records of tasks are kept this way.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

from pml_gateway.storage.redis import MAX_TTL, PREFIX, RedisServer
from pml_gateway.types import JsonObject

_PUT = """
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[4])
local is_new = redis.call('ZADD', KEYS[1], ARGV[5], ARGV[1])
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
if is_new == 0 then return end
local count, bytes = 1, #ARGV[2]
for _, digest in ipairs(redis.call('ZREVRANGE', KEYS[1], 0, -1)) do
  if digest ~= ARGV[1] then
    local size = redis.call('STRLEN', ARGV[8] .. digest)
    if size > 0 then count, bytes = count + 1, bytes + size end
    if size == 0 or count > tonumber(ARGV[6]) or bytes > tonumber(ARGV[7]) then
      redis.call('DEL', ARGV[8] .. digest)
      redis.call('ZREM', KEYS[1], digest)
    end
  end
end
"""
"""For an owner's index and a value: the digest of its id, the value, its milliseconds, now, its end, the maximum number
and bytes of an owner, and the beginning of the names of values. For a new value, others make room that end first."""


class OwnedValues:
    """The values of one collection, which `RedisValues` reads and changes by their digests.

    In Redis, ids and owners are digests, and values are encrypted.
    """

    def __init__(self, server: RedisServer, collection: str, most: int, max_bytes: int) -> None:
        """Keep `most` values of one owner, of `max_bytes` together as they are written."""
        self._server = server
        self._collection = collection
        self._start = f"{PREFIX}:{collection}:"
        self._limits = (most, max_bytes)
        self._put = server.script(_PUT)

    def digest(self, id_: str) -> str:
        """Return the name of an id that is no secret, also in the change feed."""
        return hashlib.sha256(f"{self._collection}\n{id_}".encode("utf-8", "surrogatepass")).hexdigest()

    async def put(self, owner: str, id_: str, value: JsonObject, seconds: float) -> None:
        """Keep a value for so many seconds, a day at most; those of the owner that end first make room.

        Raises:
            SharedStateError: Redis does not answer.
        """
        digest, now = self.digest(id_), int(time.time() * 1000)
        name, milliseconds = self._name(digest), max(int(min(seconds, MAX_TTL) * 1000), 1)
        sealed = await self._server.sealed(name, value)
        keys = [self._index(owner), name]
        times = (milliseconds, now, now + milliseconds)
        arguments: list[str | bytes | int] = [digest, sealed, *times, *self._limits, self._start]
        await self._put(keys, arguments)

    async def of(self, owner: str) -> list[JsonObject]:
        """Return the values of an owner, those that end first at the beginning."""
        index = self._index(owner)
        digests: Any = await self._server.run(lambda redis: redis.zrange(index, 0, -1))
        if not digests:
            return []
        names = [self._name(digest.decode()) for digest in digests]
        sealed = await self._server.run(lambda redis: redis.mget(names))
        found = await self._server.unsealed(*zip(names, sealed, strict=True))
        return [value for value in found if value is not None]

    def _name(self, digest: str) -> str:
        return f"{self._start}{digest}"

    def _index(self, owner: str) -> str:
        return f"{PREFIX}:{self._collection}-of:{self.digest(owner)}"
