"""Output shapes of tools that declare none, learned from their results and saved next to the manifest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from cachetools import FIFOCache

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.wire import encode
from pml_gateway.json_text.pieces import exceeds
from pml_gateway.policy.principal import Principal
from pml_gateway.results.content import Content, addressed
from pml_gateway.results.shapes import fields, infer, merge, unwrapped, without
from pml_gateway.signal import CoalescedSignal
from pml_gateway.storage import kinds
from pml_gateway.storage.documents import Document, compact, parsed
from pml_gateway.storage.places import MANIFEST, warn_unwritable
from pml_gateway.types import JsonObject

FORMAT = 2
MAX_COUNTED = 20_000
"""Maximum number of (tool, client) pairs whose results are counted."""

MAX_LEARNED = 5000
"""Maximum number of shapes kept for all scopes together; those not seen for the longest time are evicted first."""

MAX_SHAPE = 6000
"""Maximum characters of one shape as JSON; if a tool's results vary beyond this, its shape is not worth reading."""

ALWAYS_LOOKED_AT = 8
LOOKED_AT_EVERY = 16
"""Number of first results that are all inspected, after which a shape hardly changes and one in sixteen is."""

INLINE_CHARACTERS = 16_000
"""Maximum characters of a result that is inspected on the event loop; larger ones are inspected in a thread."""

SAVE_SECONDS = 2.0

_Key = tuple[str, str, str]
"""Scope, upstream id, and the upstream's own name of the tool."""

SEVERAL_CLIENTS, NO_CLIENT = "several", "none"
"""Values in place of the hash of the one client that has seen a field."""


@dataclass(frozen=True, slots=True)
class LearnedShape:
    """The observed output of a tool: a JSON Schema without any values, and the number of results it was seen in.

    `private` holds the fields that only one client has seen, each with a hash of its id: the names may be that client's
    data.
    """

    schema: JsonObject
    observed: int
    definition: str
    private: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Output:
    """The output of a tool as references address it: declared by its server, or inferred from results.

    `observed` is the number of those results; None if the server declares the output.
    """

    schema: JsonObject
    observed: int | None = None


class ShapesFile:
    """The learned shapes of one configuration; gateways of one process share them.

    Clients with the same rights share fields that two of them have seen; others never see them.
    """

    def __init__(self, path: Path) -> None:
        self._document = Document(kinds.OUTPUT_SHAPES, path, decode=_decode, encode=_encode, empty=dict)
        self._shapes: FIFOCache[_Key, LearnedShape] = FIFOCache(MAX_LEARNED)
        self._counts: FIFOCache[tuple[_Key, str, str], int] = FIFOCache(MAX_COUNTED)
        self._unsaved = CoalescedSignal(SAVE_SECONDS)

    async def observe(self, client: Principal, tool: CatalogTool, content: Content) -> None:
        """Learn from one successful result of a tool that declares no output."""
        key, witness = (client.rules.digest, tool.upstream_id, tool.name), _witness(client.id)
        seen, known = self._count(key, tool, witness), self._shapes.get(key)
        is_known = known is not None and known.definition == _digest(tool)
        if known is not None and is_known and seen > ALWAYS_LOOKED_AT and seen % LOOKED_AT_EVERY:
            self._shapes[key] = replace(known, observed=known.observed + 1)
            return
        if exceeds(content.value, INLINE_CHARACTERS):
            shape = await anyio.to_thread.run_sync(_infer, content)
        else:
            shape = _infer(content)
        self._learn(key, tool, shape, witness)

    def shape_of(self, client: Principal, tool: CatalogTool) -> LearnedShape | None:
        """Return the shape that clients with these rights have seen; None if there is none."""
        learned = self._shapes.get((client.rules.digest, tool.upstream_id, tool.name))
        if learned is None or learned.definition != _digest(tool) or not learned.schema:
            return None
        foreign = {path for path, witness in learned.private.items() if witness != _witness(client.id)}
        return replace(learned, schema=without(learned.schema, foreign), private={}) if foreign else learned

    async def run(self) -> None:
        """Load the shapes from disk, then save them after changes until cancelled."""
        try:
            self._take_over(await anyio.to_thread.run_sync(self._document.read))
            await self._unsaved.run(self._save)
        finally:
            if self._unsaved.is_due:
                with anyio.CancelScope(shield=True):
                    await self._save()

    def _count(self, key: _Key, tool: CatalogTool, witness: str) -> int:
        """Count one more result of this tool for a client, and return the count."""
        counted = (key, _digest(tool), witness)
        number = self._counts[counted] = self._counts.get(counted, 0) + 1
        return number

    def _learn(self, key: _Key, tool: CatalogTool, shape: JsonObject, witness: str) -> None:
        known, definition = self._shapes.pop(key, None), _digest(tool)
        if known is None or known.definition != definition:
            known = LearnedShape({}, 0, definition)
        seen = LearnedShape(shape, 1, definition, dict.fromkeys(fields(shape), witness))
        learned = self._shapes[key] = _combined(known, seen, known.observed + 1)
        if (learned.schema, learned.private) != (known.schema, known.private):
            self._unsaved.ask()

    def _take_over(self, loaded: dict[_Key, LearnedShape]) -> None:
        for key, theirs in loaded.items():
            mine = self._shapes.get(key)
            self._shapes[key] = theirs if mine is None else _merged(mine, theirs)

    async def _save(self) -> None:
        try:
            await anyio.to_thread.run_sync(self._write, dict(self._shapes))
        except OSError as error:
            warn_unwritable(MANIFEST, self._document.path.parent, error)

    def _write(self, shapes: dict[_Key, LearnedShape]) -> None:
        def update(before: dict[_Key, LearnedShape]) -> dict[_Key, LearnedShape]:
            for key, theirs in before.items():
                mine = shapes.get(key)
                shapes[key] = theirs if mine is None else _merged(mine, theirs)
            return dict([*shapes.items()][-MAX_LEARNED:])

        self._document.change(update)


@dataclass(frozen=True, slots=True)
class LearnedShapes:
    """The learned shapes as one gateway uses them: not at all while `is_on` returns False."""

    file: ShapesFile
    is_on: Callable[[], bool]

    async def observe(self, client: Principal, tool: CatalogTool, content: Content) -> None:
        """Learn from one successful result; a tool that declares its output is skipped."""
        if self.is_on() and content.kind != "binary" and "outputSchema" not in tool.definition:
            await self.file.observe(client, tool, content)

    def shape_of(self, client: Principal, tool: CatalogTool) -> LearnedShape | None:
        """Return the shape that clients with these rights have seen; None if there is none or learning is off."""
        return self.file.shape_of(client, tool) if self.is_on() and "outputSchema" not in tool.definition else None

    def output_of(self, client: Principal, tool: CatalogTool) -> Output | None:
        """Return what this client may know of the tool's output; None if nothing is declared or learned."""
        if (declared := _declared(tool)) is not None:
            return declared
        learned = self.shape_of(client, tool)
        return None if learned is None else Output(learned.schema, learned.observed)


def _encode(shapes: dict[_Key, LearnedShape]) -> str:
    rows = [[*key, shape.definition, shape.observed, shape.schema, shape.private] for key, shape in shapes.items()]
    return compact({"format": FORMAT, "shapes": rows})


def _decode(content: bytes) -> dict[_Key, LearnedShape]:
    shapes = {}
    for scope, upstream_id, tool, definition, observed, schema, private in parsed(content, FORMAT)["shapes"]:
        if not isinstance(schema, dict) or not isinstance(private, dict):
            raise TypeError("a shape is no object")
        shape = LearnedShape(schema, int(observed), str(definition), private)
        shapes[str(scope), str(upstream_id), str(tool)] = shape
    return shapes


def _merged(mine: LearnedShape, theirs: LearnedShape) -> LearnedShape:
    """Merge the shapes of one tool that two processes learned."""
    if mine.definition != theirs.definition:
        return mine
    # Both processes may have loaded the same observations, so that adding the counts would count them twice.
    return _combined(mine, theirs, max(mine.observed, theirs.observed))


def _combined(mine: LearnedShape, theirs: LearnedShape, observed: int) -> LearnedShape:
    schema = merge(mine.schema, theirs.schema)
    if exceeds(schema, MAX_SHAPE):
        return LearnedShape({"type": schema.get("type", "object")}, observed, mine.definition)
    sides = [(frozenset(fields(side.schema)), side.private) for side in (mine, theirs)]
    private: dict[str, str] = {}
    for path in fields(schema):
        witnesses = {seen.get(path, SEVERAL_CLIENTS) for paths, seen in sides if path in paths}
        # If keys turned out to be data, the fields below them are new at this path, and no client has seen them here.
        witnesses = witnesses - {NO_CLIENT} or {NO_CLIENT}
        if len(witnesses) == 1 and SEVERAL_CLIENTS not in witnesses:
            private[path] = witnesses.pop()
    return LearnedShape(schema, observed, mine.definition, private)


@lru_cache(maxsize=4096)
@lru_cache(maxsize=4096)
def inner_output(tool: CatalogTool) -> JsonObject | None:
    """Return the declared schema of the value in a Python server's `{"result": ...}`; None if it has no wrapper."""
    declared = tool.definition.get("outputSchema")
    if not isinstance(declared, dict):
        return None
    # The SDK titles both arguments and output after the function, whatever the tool's name is.
    arguments = str(tool.input_schema.get("title") or "")
    function = arguments.removesuffix("Arguments")
    return unwrapped(declared, {tool.name, *({function} if function not in ("", arguments) else ())})


@lru_cache(maxsize=4096)
def _witness(client_id: str) -> str:
    return hashlib.sha256(client_id.encode()).hexdigest()[:16]


def _infer(content: Content) -> JsonObject:
    value: Any = addressed(content)
    return infer(value)


@lru_cache(maxsize=4096)
def _declared(tool: CatalogTool) -> Output | None:
    declared = tool.definition.get("outputSchema")
    return Output(inner_output(tool) or declared) if isinstance(declared, dict) else None


@lru_cache(maxsize=4096)
def _digest(tool: CatalogTool) -> str:
    """Return a hash of the tool's definition; if it changes, learned shapes no longer apply."""
    return hashlib.sha256(encode(tool.definition)).hexdigest()[:12]
