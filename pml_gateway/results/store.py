"""Stored results of each client, and the resolution of references in later arguments."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
from cachetools import LRUCache

from pml_gateway.config.settings import ReferenceSettings, Settings
from pml_gateway.errors import (
    ConfigurationError,
    InvalidInputError,
    ReferenceNotFoundError,
    ResultStoreError,
    SharedStateError,
)
from pml_gateway.json_text.pieces import measure
from pml_gateway.log import get_logger
from pml_gateway.policy.principal import Principal
from pml_gateway.policy.view import View
from pml_gateway.quotas import Holdings
from pml_gateway.results.content import Content
from pml_gateway.results.encoding import EncodedResult, decode, encode, tokens_of_json
from pml_gateway.results.paths import value_at
from pml_gateway.results.references import Reference, find_references, is_handle, substitute
from pml_gateway.results.stored import Source, StoredResult, from_head, kept_bytes, to_head
from pml_gateway.secrets.references import resolve
from pml_gateway.storage.backend import Backend, build_backend
from pml_gateway.storage.documents import readable
from pml_gateway.storage.memory import KeyValues
from pml_gateway.types import JsonObject
from pml_gateway.working_directory import WorkingDirectory

logger = get_logger(__name__)

COLLECTION = "pml-results"
HANDLE_BYTES = 16
MAX_RESOLVED = 64 * 1024 * 1024
"""Maximum bytes that the references of one call may resolve to."""

MAX_USED = 2000
MAX_USES = 20
"""Number of references whose later uses are recorded, and number of uses per reference."""

STORE_SECONDS = 20.0
"""Time limit in seconds for storing or reading one result."""

Visible = Callable[[Source], bool]
"""A check that the client may still see where a result came from; if not, the result does not exist for it."""


def visible_to(view: View) -> Visible:
    """Return a check of sources for a client: results of a tool that is now hidden are hidden with it."""

    def visible(source: Source) -> bool:
        tools = (*((source.tool,) if source.tool is not None else ()), *source.made_from)
        return all(view.catalog.assignments.get(tool) in view.names for tool in tools)

    return visible


@dataclass(frozen=True, slots=True)
class ResolvedReference:
    """Arguments with references replaced by values, and the references that were used."""

    arguments: JsonObject
    refs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Entry:
    parts: int
    expires_at: float


class ResultStore:
    """The stored results of one gateway; opened by `open_results`.

    A handle is a secret of 128 bits and belongs to one client: for all others it is unknown, like an expired one.
    """

    def __init__(
        self,
        settings: ReferenceSettings,
        open_backend: Callable[[], Awaitable[Backend]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self._open_backend = open_backend
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._held: Holdings[str] = Holdings()
        self._uses: LRUCache[str, deque[Source]] = LRUCache(MAX_USED)

    @property
    def bytes(self) -> int:
        """Return the bytes that the results of this process take, including bookkeeping."""
        return self._held.total

    async def put(
        self,
        client: Principal,
        content: Content,
        *,
        source: Source,
        over: int | None = None,
        ref: str = "",
        until: float | None = None,
    ) -> StoredResult | None:
        """Store a value for a client; return None if it is larger than the whole store may be, or not JSON.

        With `over`, also return None if it has no more tokens than that, or than the answer that would replace it. By
        default its handle is a new one, and it expires as the settings say.

        Raises:
            ResultStoreError: the store cannot be opened or does not respond.
        """
        try:
            encoded = await anyio.to_thread.run_sync(encode, content)
        except (ValueError, RecursionError, TypeError):
            return None
        if over is not None and encoded.tokens <= over:
            return None
        stored = self._described(encoded, source, ref, until)
        if over is not None and encoded.tokens <= tokens_of_json(stored.answer()):
            return None
        if stored.stored_bytes > self.settings.max_bytes:
            logger.warning(
                "a result of %d bytes takes %d, and references.max_bytes is %d",
                encoded.bytes,
                stored.stored_bytes,
                self.settings.max_bytes,
            )
            return None
        async with self._backend() as backend:
            is_kept = await self._write(backend, _key(stored.ref), stored, client, encoded.parts)
        return stored if is_kept else None

    def _described(self, encoded: EncodedResult, source: Source, ref: str, until: float | None) -> StoredResult:
        handle = ref or f"ref_{secrets.token_urlsafe(HANDLE_BYTES)}"
        stored = StoredResult(
            ref=handle,
            content_kind=encoded.kind,
            mime=encoded.mime,
            tokens=encoded.tokens,
            bytes=encoded.bytes,
            sha256=encoded.sha256,
            shape=encoded.shape,
            preview=encoded.preview,
            reads_on=encoded.reads_on,
            expires_at=self._clock() + self.settings.ttl_seconds if until is None else until,
            source=source,
            parts=len(encoded.parts),
        )
        return replace(stored, stored_bytes=kept_bytes(stored, encoded.packed_bytes))

    async def resolve(self, client: Principal, arguments: JsonObject, visible: Visible) -> ResolvedReference:
        """Replace every `{"$ref": handle, "path": jmespath}` in the arguments; inserted values are not scanned again.

        Raises:
            ReferenceNotFoundError: a handle is unknown, another client's, or expired.
            InvalidInputError: a path finds nothing, a reference is malformed, or the call uses too much.
        """
        if self.settings.mode == "off":
            return ResolvedReference(arguments)
        found = find_references(arguments)
        if not found:
            return ResolvedReference(arguments)
        values: dict[Reference, Any] = {}
        contents: dict[str, Content] = {}
        total = 0
        for handle, path in found:
            if handle not in contents:
                _, contents[handle] = await self.read(client, handle, visible)
            if (handle, path) not in values:
                values[handle, path] = await value_at(contents[handle], path)
            total += await anyio.to_thread.run_sync(measure, values[handle, path], MAX_RESOLVED)
            if total > MAX_RESOLVED:
                raise InvalidInputError(
                    f"the references stand for more than {MAX_RESOLVED // 1024**2} MiB", hint="pass less in one call"
                )
        return ResolvedReference(substitute(arguments, values), tuple(contents))

    async def read(self, client: Principal, handle: str, visible: Visible) -> tuple[StoredResult, Content]:
        """Return the stored result of a handle, and its value.

        Raises:
            ReferenceNotFoundError: the handle is unknown, another client's, or expired.
        """
        found = None if self.settings.mode == "off" else await self._with_value(client, handle, visible)
        if found is None:
            raise ReferenceNotFoundError(handle)
        return found

    async def look_up(self, client: Principal, handle: str, visible: Visible) -> StoredResult:
        """Return the stored result of a handle, without its value.

        Raises:
            ReferenceNotFoundError: the handle is unknown, another client's, or expired.
        """
        found = None if self.settings.mode == "off" else await self._head(client, handle)
        if found is None or not visible(found[0].source):
            raise ReferenceNotFoundError(handle)
        return found[0]

    async def result_of_task(self, client: Principal, handle: str, visible: Visible) -> Content | None:
        """Return the result of a task, which is stored in every mode of references; None if there is none."""
        found = await self._with_value(client, handle, visible)
        return None if found is None else found[1]

    def note_use(self, source: Source) -> None:
        """Record for the lineage that a call used references; forgotten with their results."""
        for key in map(_key, source.refs):
            if key in self._entries:
                self._uses.setdefault(key, deque(maxlen=MAX_USES)).append(source)

    def uses(self, handle: str) -> list[Source]:
        """Return the latest calls that used a reference."""
        return list(self._uses.get(_key(handle), ()))

    async def _with_value(
        self, client: Principal, handle: str, visible: Visible
    ) -> tuple[StoredResult, Content] | None:
        found = await self._head(client, handle, with_part=True)
        if found is None or not visible(found[0].source):
            return None
        stored, parts = found[0], [found[1]]
        if stored.parts > 1:
            async with self._backend() as backend:
                for number in range(1, stored.parts):
                    # Stores in this process never block, so other tasks run between the parts.
                    await anyio.lowlevel.checkpoint()
                    parts.append(await backend.values.get(f"{_key(handle)}:{number}", collection=COLLECTION))
                    if parts[-1] is None:
                        break
        texts = [str(part["part"]) for part in parts if part is not None]
        if len(texts) < stored.parts:
            # It has expired in the meantime.
            return None
        return stored, await anyio.to_thread.run_sync(decode, stored.content_kind, texts, stored.mime)

    async def _head(
        self, client: Principal, handle: str, *, with_part: bool = False
    ) -> tuple[StoredResult, JsonObject | None] | None:
        """Return the stored result of a client's handle, on request with the first part of its value; or None."""
        if not is_handle(handle):
            return None
        key = _key(handle)
        async with self._backend() as backend:
            keys = [f"{key}:head", *([f"{key}:0"] if with_part else [])]
            head, *parts = await backend.values.get_many(keys, collection=COLLECTION)
            if head is None:
                self._forget(key)
                return None
            if not hmac.compare_digest(str(head.get("owner")), client.digest):
                return None
            stored = readable("a stored result", lambda: from_head(head, handle))
            if stored is None:
                return None
            self._remember(key, stored, client)
            if stored.expires_at <= self._clock():
                await self._delete(backend, key)
                return None
        return stored, parts[0] if parts else None

    async def _write(
        self, backend: Backend, key: str, stored: StoredResult, client: Principal, parts: tuple[str, ...]
    ) -> bool:
        """Write a value; return False if concurrent writes evicted it."""
        ttl = max(stored.expires_at - self._clock(), 1.0)
        # Counted before it is written, so that concurrent writes stay under the cap together.
        self._remember(key, stored, client)
        head = {**to_head(stored), "owner": client.digest}
        try:
            await self._make_room(backend)
            keys = [f"{key}:{number}" for number in range(len(parts))]
            for name, part in zip(keys[:-1], parts[:-1], strict=True):
                await backend.values.put(name, {"part": part}, collection=COLLECTION, ttl=ttl)
                # Stores in this process never block, so other tasks run between the parts.
                await anyio.lowlevel.checkpoint()
            last = [{"part": parts[-1]}, head]
            await backend.values.put_many([keys[-1], f"{key}:head"], last, collection=COLLECTION, ttl=ttl)
        except BaseException:
            with anyio.CancelScope(shield=True), anyio.move_on_after(STORE_SECONDS):
                await self._delete(backend, key)
            raise
        if key in self._entries:
            return True
        # Evicted before it was completely written.
        self._remember(key, stored, client)
        await self._delete(backend, key)
        return False

    async def _make_room(self, backend: Backend) -> None:
        """Evict expired results, then the least recently used of the client that holds most, until the cap holds."""
        now, cap = self._clock(), self.settings.max_bytes
        for key in [key for key, entry in self._entries.items() if entry.expires_at <= now]:
            await self._delete(backend, key)
        while self._held.total > cap and (oldest := self._held.first_to_go()) is not None:
            await self._delete(backend, oldest)

    async def _delete(self, backend: Backend, key: str) -> None:
        entry = self._entries.get(key)
        self._forget(key)
        await backend.values.delete(f"{key}:head", collection=COLLECTION)
        for number in range(entry.parts if entry is not None else 0):
            await backend.values.delete(f"{key}:{number}", collection=COLLECTION)

    def _remember(self, key: str, stored: StoredResult, client: Principal) -> None:
        """Count a result towards the cap, as its client's most recently used one."""
        self._held.note(key, client.quota_key, stored.stored_bytes)
        self._entries[key] = _Entry(stored.parts, stored.expires_at)

    def _forget(self, key: str) -> None:
        self._entries.pop(key, None)
        self._held.forget(key)
        self._uses.pop(key, None)

    @asynccontextmanager
    async def _backend(self) -> AsyncIterator[Backend]:
        """Yield the store for one operation, with a time limit, and translate its failures.

        Raises:
            ResultStoreError: it cannot be opened, does not respond, or fails.
        """
        try:
            with anyio.fail_after(STORE_SECONDS):
                try:
                    backend = await self._open_backend()
                except ConfigurationError as error:
                    raise ResultStoreError(error.message, hint=error.hint) from error
                try:
                    yield backend
                except backend.failures as error:
                    raise ResultStoreError(f"the store of results failed: {type(error).__name__}") from error
        except TimeoutError as error:
            raise ResultStoreError(f"the store of results did not answer in {STORE_SECONDS:.0f} s") from error


@asynccontextmanager
async def open_results(
    settings: Settings,
    directory: Path,
    working_directory: WorkingDirectory | None = None,
    shared: KeyValues | None = None,
) -> AsyncIterator[ResultStore]:
    """Open the store of one gateway; its backend is opened when the first result is stored, and closed on exit.

    Args:
        settings: which results are kept, where and for how long.
        directory: the folder of the disk store.
        working_directory: the variables and folder to find the store with; by default those of this process.
        shared: the store of several gateways, which is used instead of the one in the settings.

    Raises:
        SecretError: a variable in `storage.results` is missing.
    """
    if shared is not None:
        backend = Backend(shared, nullcontext(), (SharedStateError,))

        async def backend_of_all() -> Backend:
            return backend

        yield ResultStore(settings.references, backend_of_all)
        return
    working_directory = working_directory or WorkingDirectory.here()
    where = settings.storage.results
    resolve(where, working_directory.environ)
    opened: list[Backend] = []
    opening = anyio.Lock()
    async with AsyncExitStack() as stack:

        async def open_backend() -> Backend:
            if not opened:
                async with opening:
                    if not opened:
                        backend = await anyio.to_thread.run_sync(
                            build_backend, where, directory, settings.references.max_bytes, working_directory
                        )
                        await stack.enter_async_context(backend.context)
                        opened.append(backend)
            return opened[0]

        yield ResultStore(settings.references, open_backend)


def _key(handle: str) -> str:
    """Return the key under which a handle's value is stored; a hash, so that the store's keys reveal no handle."""
    return hashlib.sha256(handle.encode()).hexdigest()
