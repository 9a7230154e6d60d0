"""Files that replicas have in common, such as the keys of clients: in Redis, with a copy in each replica's folder.

Reading means reading the copy. It follows Redis within a second, and serves on during an outage. A change begins with
the content in Redis; it is written there first, then into the copy.

A replica may have been away, and Redis may have lost its data. Each content therefore has the number of changes that
each folder has made to it. By these numbers, an old copy is recognised, and Redis is filled with the newest copy. If
each of two copies has changes that the other lacks, they are merged.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol

import anyio
import anyio.to_thread

from pml_gateway.errors import ConfigurationError, GatewayError, SharedStateError, error_message
from pml_gateway.files import write_atomically
from pml_gateway.log import get_logger
from pml_gateway.storage.change_feed import MAX_ENTRIES, STREAM, ChangeFeed
from pml_gateway.storage.documents import DAMAGE, ContentT, Document, ResultT, compact
from pml_gateway.storage.redis import (
    OPERATION_SECONDS,
    PREFIX,
    RedisHealth,
    RedisServer,
    named,
    read_state,
    refuse_other_state,
)
from pml_gateway.storage.redis_url import address_of, anonymous, resolved_key, resolved_url
from pml_gateway.storage.sealing import Sealing
from pml_gateway.types import JsonObject
from pml_gateway.working_directory import WorkingDirectory

if TYPE_CHECKING:
    from redis import Redis
    from redis.asyncio import Redis as AsyncRedis

logger = get_logger(__name__)

TOPIC = "documents"

KEPT_MILLISECONDS = 30 * 24 * 3600 * 1000
"""Time after which a document is deleted if no replica looks at it."""

LOOK_SECONDS = 2.0
"""Time between two reads without a change in the feed."""

FILL_SECONDS = 5.0
"""Time after the start in which a replica fills no gaps in Redis: those that ran before know more."""

MAX_WRITERS = 64
"""Folders whose changes are counted, those that changed something last: a copy that counts another one is merged."""

MAX_ATTEMPTS = 50
"""Attempts at a change that other replicas come before."""

OUTAGE_HINT = "try again later, or see pml doctor; gateways go by what they knew last, and nothing was changed"

_HEADER = '{"shared":'

_REPLACE = """
local found = redis.call('HGET', KEYS[1], 'stamp') or ''
if found ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'stamp', ARGV[2], 'value', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.pcall('XADD', KEYS[2], 'MAXLEN', '~', ARGV[5], '*', 'topic', ARGV[6], 'id', ARGV[7])
return 1
"""
"""Replace a document if it has the stamp that was read, empty if it had none; add it to the change feed if possible."""


class OvertakenError(Exception):
    """Another replica has changed the document meanwhile."""


@dataclass(frozen=True, slots=True)
class _Copy(Generic[ContentT]):
    """Content, with the number of changes by each folder, the last to change it at the end."""

    content: ContentT
    changes: Mapping[str, int]

    def covers(self, other: _Copy[ContentT]) -> bool:
        """Return True if every change of the other one is in this one."""
        return all(self.changes.get(writer, 0) >= count for writer, count in other.changes.items())


class SharedDocuments:
    """The documents at a `storage.url`. Every method but `run` blocks: call it in a thread."""

    def __init__(self, url: str, sealing: Sealing, health: RedisHealth | None = None) -> None:
        """Use a resolved URL, and what is known of its server already; nothing is connected yet."""
        self._url = url
        self._sealing = sealing
        self._health = health or RedisHealth(named(address_of(url)))
        self._documents: dict[str, SharedDocument[Any]] = {}
        self.space = sealing.key_for("documents").hex()[:8]
        """Keeps documents of another storage.key apart, so that a new key begins with the copies of all replicas."""
        self._is_checked = False
        self._has_pulled = False

    @property
    def are_known(self) -> bool:
        """Return True if Redis has answered once, or there are copies of before."""
        return self._has_pulled or any(document.path.exists() for document in self._documents.values())

    def shared(
        self,
        name: str,
        local: Document[ContentT],
        merge: Callable[[ContentT, ContentT], ContentT],
        own: Callable[[ContentT], ContentT] = lambda content: content,
        joined: Callable[[ContentT, ContentT], ContentT] = lambda _, own: own,
    ) -> SharedDocument[ContentT]:
        """Return a document that all replicas know by a name.

        Args:
            name: its name, the same everywhere.
            local: the file of the copy.
            merge: merges two contents of which neither is newer; the order must make no difference.
            own: returns the part of a file's content that is shared.
            joined: returns a file's content with its shared part replaced.
        """
        if name not in self._documents:
            self._documents[name] = SharedDocument(self, name, local, merge, own, joined)
        return self._documents[name]

    def pull(self, *, fills: bool = False) -> None:
        """Take over what other replicas have changed; with `fills`, also write what Redis lacks.

        Raises:
            GatewayError: Redis does not answer, or its content cannot be used.
            OSError: a copy cannot be written.
        """
        self._take_over(self._documents.values(), fills=fills)
        self._has_pulled = True

    def _take_over(self, documents: Iterable[SharedDocument[Any]], *, fills: bool) -> None:
        problems = list[GatewayError | OSError]()
        for document in list(documents):
            # One that cannot be read must not keep revoked keys in force.
            try:
                document.pull(fills=fills)
            except (GatewayError, OSError) as error:
                problems.append(error)
        if problems:
            raise problems[0]

    def pull_or_warn(self) -> None:
        """Take over what other replicas have changed; if that is impossible, say so and go by the copies."""
        try:
            self.pull()
        except (GatewayError, OSError) as error:
            what = "may be out of date" if self.are_known else "are not known, and /readyz answers 503 until they are"
            logger.warning("client keys and accepted definitions %s: %s", what, error_message(error))

    async def run(self, server: RedisServer, feed: ChangeFeed) -> None:
        """Follow the others' changes, for as long as the owner's task group lives."""
        changed, problem, fills_at = anyio.Event(), "", anyio.current_time() + FILL_SECONDS
        with feed.subscribed(TOPIC, lambda _: changed.set()):
            while True:
                with anyio.move_on_after(LOOK_SECONDS):
                    await changed.wait()
                changed = anyio.Event()
                fills = anyio.current_time() >= fills_at
                try:
                    if behind := await self._behind(server, fills=fills):
                        await anyio.to_thread.run_sync(partial(self._take_over, behind, fills=fills))
                    self._has_pulled = True
                    problem = ""
                except (GatewayError, OSError) as error:
                    if str(error) != problem and not isinstance(error, SharedStateError):
                        logger.error("keys and accepted definitions of other replicas are not known: %s", error)
                    problem = str(error)

    async def _behind(self, server: RedisServer, *, fills: bool) -> list[SharedDocument[Any]]:
        """Return the documents that others have changed; with `fills`, also those that Redis lacks."""
        documents = list(self._documents.values())

        async def look(redis: AsyncRedis) -> list[Any]:
            async with redis.pipeline(transaction=False) as commands:
                for document in documents:
                    commands.hget(document.key, "stamp")
                    commands.pexpire(document.key, KEPT_MILLISECONDS)
                # One that Redis refuses to read is found out by itself.
                return await commands.execute(raise_on_error=False)

        stamps = (await server.run(look))[::2]
        pairs = zip(documents, stamps, strict=True)
        return [document for document, stamp in pairs if document.is_behind(stamp or b"", fills=fills)]

    def fetch(self, key: str) -> tuple[bytes, JsonObject | None]:
        """Return the stamp and the value of a key; an empty stamp if there is none, and no value if it was forged."""
        stamp, sealed = self._run(lambda redis: redis.hmget(key, "stamp", "value"))
        if not isinstance(stamp, bytes) or sealed is None:
            return b"", None
        return stamp, self._sealing.unseal(key, sealed)

    def replace(self, key: str, name: str, stamp: bytes, value: JsonObject) -> bytes:
        """Replace the value of a key that has this stamp; return the new stamp.

        Raises:
            OvertakenError: it has another one.
        """
        now = secrets.token_hex(8).encode()
        sealed = self._sealing.seal(key, value)
        arguments = (stamp, now, sealed, KEPT_MILLISECONDS, MAX_ENTRIES, TOPIC, name)
        if not self._run(lambda redis: redis.eval(_REPLACE, 2, key, STREAM, *arguments)):
            raise OvertakenError
        return now

    def _run(self, command: Callable[[Redis], ResultT]) -> ResultT:
        """Run a command on a connection of its own."""
        # Importing it takes a tenth of a second.
        from redis import BlockingConnectionPool, Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        limits: dict[str, Any] = {"socket_timeout": OPERATION_SECONDS, "socket_connect_timeout": OPERATION_SECONDS}
        with self._health.command(OUTAGE_HINT):
            pool = BlockingConnectionPool.from_url(
                self._url, max_connections=1, retry=Retry(NoBackoff(), 0), **limits, **anonymous()
            )
            with Redis.from_pool(pool) as redis:
                if not self._is_checked:
                    # Gateways with another format or key could not read what is written.
                    refuse_other_state(self._sealing, read_state(redis))
                    self._is_checked = True
                return command(redis)


class SharedDocument(Document[ContentT]):
    """A document in Redis, read from its copy. Made by `SharedDocuments.shared`."""

    def __init__(
        self,
        documents: SharedDocuments,
        name: str,
        local: Document[ContentT],
        merge: Callable[[ContentT, ContentT], ContentT],
        own: Callable[[ContentT], ContentT],
        joined: Callable[[ContentT, ContentT], ContentT],
    ) -> None:
        super().__init__(
            local.kind,
            local.path,
            decode=local.decode,
            encode=local.encode,
            empty=local.empty,
            lock_seconds=local.lock_seconds,
        )
        self.key = f"{PREFIX}:documents:{documents.space}:{name}"
        self._documents = documents
        self._name = name
        self._merge = merge
        self._own = own
        self._joined = joined
        self._stamp: bytes | None = None
        """Stamp of the content in the copy."""
        self._found = b""
        """Stamp of the content last found in Redis."""
        self._changes: Mapping[str, int] = {}
        self._is_due = False
        """True while Redis lacks something that the copy has."""

    def is_behind(self, stamp: bytes, *, fills: bool) -> bool:
        """Return True if Redis has other content than the copy by its stamp; with `fills`, also if it lacks some."""
        return stamp != self._stamp or (fills and self._is_due)

    def pull(self, *, fills: bool) -> None:
        """Take over the content in Redis; with `fills`, write what Redis lacks.

        Raises:
            GatewayError: Redis does not answer, or its content cannot be used.
            OSError: the copy cannot be written.
        """

        def fill() -> None:
            if fills and self._is_due:
                self._put(self.read())

        self.exclusively(fill)

    def exclusively(self, work: Callable[[], ResultT]) -> ResultT:
        """Return the result of work on the newest content; it is done again if another replica comes before it.

        Raises:
            OSError: the copy cannot be locked or written.
            GatewayError: Redis does not answer, its content cannot be used, or others change it all the time.
        """
        for _ in range(MAX_ATTEMPTS):
            with self.locked():
                try:
                    self._take_over()
                    return work()
                except OvertakenError:
                    continue
        raise SharedStateError(f"{self.kind.name} at storage.url are changed by others all the time", hint=OUTAGE_HINT)

    def write(self, content: ContentT) -> None:
        """Replace the content, in Redis first; call it in `exclusively` alone.

        Raises:
            OSError: the copy cannot be written.
            SharedStateError: Redis does not answer.
        """
        writer = self._writer()
        changes = {each: count for each, count in self._changes.items() if each != writer}
        changes[writer] = self._changes.get(writer, 0) + 1
        self._changes = dict([*changes.items()][-MAX_WRITERS:])
        self._put(content, writer)

    def _put(self, content: ContentT, writer: str = "") -> None:
        """Write a content that has the changes counted now."""
        value = {"changes": dict(self._changes), "content": self.encode(self._own(content))}
        self._found = self._documents.replace(self.key, self._name, self._found, value)
        self._write_copy(writer or self._writer(), content)
        self._stamp, self._is_due = self._found, False

    def _take_over(self) -> None:
        """Bring the copy and what is known of Redis up to date; the copy is locked."""
        self._found, value = self._documents.fetch(self.key)
        copy, has_copy = self._read_copy()
        mine = _Copy(self._own(copy.content), copy.changes)
        self._changes = mine.changes
        if value is None:
            self._stamp, self._is_due = self._found, has_copy
            return
        theirs = self._decoded(value)
        is_newest = not has_copy or (bool(mine.changes) and theirs.covers(mine))
        if not is_newest and mine.changes and mine.covers(theirs):
            self._stamp, self._is_due = self._found, True
            return
        merged = theirs.content if is_newest else self._merge(mine.content, theirs.content)
        content = self._joined(copy.content, merged)
        if merged != theirs.content:
            counts = {**theirs.changes, **mine.changes}
            self._changes = {each: max(count, theirs.changes.get(each, 0)) for each, count in counts.items()}
            self._put(content)
            return
        self._changes = theirs.changes
        if not has_copy or content != copy.content or theirs.changes != copy.changes:
            self._write_copy(self._writer(), content)
        self._stamp, self._is_due = self._found, False

    def _decoded(self, value: JsonObject) -> _Copy[ContentT]:
        try:
            changes = {str(writer): int(count) for writer, count in value["changes"].items()}
            return _Copy(self.decode(value["content"].encode()), changes)
        except DAMAGE as error:
            raise ConfigurationError(
                f"{self.kind.name} at storage.url cannot be read ({error})",
                hint="use the same version of pml everywhere",
            ) from error

    def _read_copy(self) -> tuple[_Copy[ContentT], bool]:
        """Return the copy, and whether there is one; a damaged one is set aside."""
        try:
            content = self.path.read_bytes()
            return _Copy(self.decode(content), _header(content).get("changes", {})), True
        except (FileNotFoundError, NotADirectoryError):
            return _Copy(self.empty(), {}), False
        except DAMAGE as error:
            logger.error("%s is damaged (%s); it is set aside", self.path, error)
            self.set_aside()
            return _Copy(self.empty(), {}), False

    def _writer(self) -> str:
        """Return the id of this folder among those that change the document."""
        try:
            with self.path.open("rb") as file:
                return str(_header(file.read(_HEADER_BYTES)).get("writer") or secrets.token_hex(6))
        except OSError:
            return secrets.token_hex(6)

    def _write_copy(self, writer: str, content: ContentT) -> None:
        header = compact({"writer": writer, "changes": dict(self._changes)})
        write_atomically(self.path, f"{_HEADER}{header},{self.encode(content)[1:]}")


_HEADER_BYTES = 64 * 1024
"""Maximum length of a header: each writer takes some 25 bytes, and merges may know many more than one writes."""


def _header(content: bytes) -> JsonObject:
    """Return what a copy says of itself at its start; nothing if replicas did not share it until now."""
    start = content[:_HEADER_BYTES].decode(errors="replace")
    if not start.startswith(_HEADER):
        return {}
    header: JsonObject = json.JSONDecoder().raw_decode(start, len(_HEADER))[0]
    return header


class SharedStorage(Protocol):
    """The settings of a storage."""

    @property
    def url(self) -> str | None:
        """The server, with references."""

    @property
    def key(self) -> str | None:
        """The key, as a reference."""


def open_documents(
    storage: SharedStorage, environ: Mapping[str, str] | None = None, server: RedisServer | None = None
) -> SharedDocuments | None:
    """Return the documents of a storage, whose server may be open already; None if no Redis server is named. Blocking.

    Raises:
        ConfigurationError: the settings cannot be used.
    """
    if storage.url is None:
        return None
    known = WorkingDirectory.here().environ if environ is None else environ
    url = resolved_url(storage.url, known)
    if server is not None:
        return SharedDocuments(url, server, server.health)
    return SharedDocuments(url, Sealing(resolved_key(storage.key, known)))
