"""The final form of an upstream's result for a client: the result itself, a reference to it, or "unchanged"."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, assert_never

import anyio.to_thread

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.config.settings import ReferenceSettings
from pml_gateway.errors import ResultStoreError
from pml_gateway.json_text.pieces import exceeds
from pml_gateway.log import get_logger
from pml_gateway.policy.principal import Principal
from pml_gateway.results.content import Content, content_of, data_result, media_data, media_of, with_media
from pml_gateway.results.encoding import tokens_of_json
from pml_gateway.results.etags import META_KEY, etag_of, expiring, is_unchanged
from pml_gateway.results.learning import LearnedShapes, inner_output
from pml_gateway.results.shapes import sketch
from pml_gateway.results.store import ResultStore
from pml_gateway.results.stored import Source, StoredResult
from pml_gateway.types import JsonObject

logger = get_logger(__name__)

INLINE_CHARACTERS = 32_000
"""Maximum characters of a result hashed on the event loop, in 0.1 ms; larger ones are hashed in a thread."""

MAX_INPUTS = 400
"""Maximum characters of a call's arguments in a lineage."""

Route = Literal["workflow", "inside", "meta", "direct"]
"""The route of a call: a batch slot or workflow step, a composite tool's step, `call_tool`, or the tool's own name."""


@dataclass(frozen=True, slots=True)
class PresentedResult:
    """A call's result as its client receives it, together with the original value.

    Args:
        result: the `tools/call` result for the client.
        etag: the etag, for results that may repeat.
        unchanged: True if the client holds this result already, so that `result` carries no body.
        stored: the stored result, if `result` only refers to it.
        content: the value itself, whatever the client receives.
        coerced: how arguments were coerced to the tool's schema, by JSON pointer.
    """

    result: JsonObject
    content: Content
    etag: str | None = None
    unchanged: bool = False
    stored: StoredResult | None = None
    coerced: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Call:
    """One call: its client, tool, route, arguments as the client sent them, and start time.

    `may_read` is True if the client could read the result if it were stored.
    """

    client: Principal
    tool: CatalogTool
    route: Route
    sent: JsonObject
    refs: tuple[str, ...] = ()
    if_none_match: str | None = None
    run: str = ""
    may_read: bool = True
    began: float = field(default_factory=time.time)


class Settler:
    """The final form of each result for its client: stored or whole, with an etag, or unchanged."""

    def __init__(self, results: ResultStore, shapes: LearnedShapes, keeps_arguments: Callable[[], bool]) -> None:
        """Let `keeps_arguments` decide if a lineage may hold arguments or only their shape."""
        self._results = results
        self._shapes = shapes
        self._keeps_arguments = keeps_arguments

    async def settle(self, call: Call, result: JsonObject) -> PresentedResult:
        """Return what the client receives for an upstream's result; errors and questions pass unchanged."""
        failed = result.get("isError") is True
        if call.refs:
            self._results.note_use(self._source(call, "error" if failed else "ok"))
        if result.get("resultType") not in (None, "complete"):
            return PresentedResult(result, Content("json", None))
        if failed:
            return await self._failed(call, result)
        content = await _content(result, wraps=inner_output(call.tool) is not None)
        await self._shapes.observe(call.client, call.tool, content)
        etag = await _etag(call, result)
        if etag is not None and is_unchanged(etag, call.if_none_match):
            told = data_result({"unchanged": True, "etag": call.if_none_match})
            return PresentedResult(_with_etag(told, call.if_none_match), content, call.if_none_match, unchanged=True)
        stored, media = await self._store(call, result, content)
        if stored is not None:
            etag = etag and expiring(etag, stored.expires_at)
            answer = data_result({**stored.answer(), **({"etag": etag} if etag else {})})
            return PresentedResult(_with_etag(with_media(answer, media), etag), content, etag, stored=stored)
        return PresentedResult(result if etag is None else _with_etag(result, etag), content, etag)

    async def keep(self, call: Call, result: JsonObject, ref: str, until: float) -> StoredResult | None:
        """Store the result of a call whose client has only a handle of it yet, whatever its size.

        Raises:
            ResultStoreError: the store cannot be opened or does not respond.
        """
        failed = result.get("isError") is True
        if call.refs:
            self._results.note_use(self._source(call, "error" if failed else "ok"))
        content = await _content(result, wraps=not failed and inner_output(call.tool) is not None)
        if not failed:
            await self._shapes.observe(call.client, call.tool, content)
        source = self._source(call, "error" if failed else "ok")
        return await self._results.put(call.client, content, source=source, ref=ref, until=until)

    async def _failed(self, call: Call, result: JsonObject) -> PresentedResult:
        """Store a failure's text if it is large, so that it cannot flood a conversation; workflows need it whole."""
        nothing = Content("json", None)
        if call.route not in ("meta", "direct"):
            return PresentedResult(result, nothing)
        stored, media = await self._store(call, result, await _content(result), "error")
        if stored is None:
            return PresentedResult(result, nothing)
        return PresentedResult(with_media(data_result(stored.answer(), is_error=True), media), nothing, stored=stored)

    async def _store(
        self, call: Call, result: JsonObject, content: Content, status: str = "ok"
    ) -> tuple[StoredResult | None, list[JsonObject]]:
        """Store a result that is too large to answer whole; return it with the media that are still shown.

        Images and audio do not count as text, since models do not read them as text.
        """
        settings = self._results.settings
        # SDK clients raise an error if a tool that declares its output answers without it.
        is_held_to_it = call.route == "direct" and "outputSchema" in call.tool.definition
        if not call.may_read or not stores(settings, call.route) or is_held_to_it:
            return None, []
        # A token has at least one character, so most results are known to be small without counting tokens.
        if not exceeds(content.value, settings.threshold_tokens):
            return None, []
        media = media_of(result)
        if sum(len(block["data"]) for block in media) > settings.media_bytes:
            media = []
        if media:
            text = content_of({**result, "content": [block for block in result["content"] if block not in media]}).value
            if await anyio.to_thread.run_sync(tokens_of_json, text) <= settings.threshold_tokens:
                return None, []
        try:
            source = self._source(call, status)
            return await self._results.put(call.client, content, source=source, over=settings.threshold_tokens), media
        except ResultStoreError as error:
            logger.warning("a result of %s is given whole: %s", call.tool.qualified_name, error)
            return None, []

    def _source(self, call: Call, status: str) -> Source:
        return Source(
            tool=(call.tool.upstream_id, call.tool.name),
            name=call.tool.qualified_name,
            inputs=describe_inputs(call.sent, whole=self._keeps_arguments()),
            refs=call.refs,
            status=status,
            at=call.began,
            seconds=time.time() - call.began,
            run=call.run,
        )


async def _content(result: JsonObject, *, wraps: bool = False) -> Content:
    """Return the content of a result; large binary blocks are checked in a thread."""
    blocks = result.get("content") or ()
    if any(len(data) > INLINE_CHARACTERS for block in blocks if (data := media_data(block)) is not None):
        return await anyio.to_thread.run_sync(partial(content_of, result, wraps=wraps))
    return content_of(result, wraps=wraps)


async def _etag(call: Call, result: JsonObject) -> str | None:
    # The etag of a part would be taken for an etag of the composite tool that contains it.
    if not call.tool.idempotent or call.route == "inside":
        return None
    if exceeds([result.get("content"), result.get("structuredContent")], INLINE_CHARACTERS):
        return await anyio.to_thread.run_sync(etag_of, call.client, call.tool, result)
    return etag_of(call.client, call.tool, result)


def stores(settings: ReferenceSettings, route: Route) -> bool:
    """Return True if large results on this route are answered by reference; those inside a composite tool never are."""
    if route == "inside":
        return False
    match settings.mode:
        case "off":
            return False
        case "workflow":
            return route == "workflow"
        case "meta":
            return route in ("workflow", "meta")
        case "all":
            return True
        case _ as unreachable:
            assert_never(unreachable)


def describe_inputs(arguments: JsonObject, *, whole: bool) -> str:
    """Return a call's arguments for its lineage: their shape, or their values if `activity.arguments` keeps them."""
    if not whole:
        return sketch(arguments, MAX_INPUTS)
    text = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"), default=str)
    return text if len(text) <= MAX_INPUTS else f"{text[: MAX_INPUTS - 1]}…"


def _with_etag(result: JsonObject, etag: str | None) -> JsonObject:
    if etag is None:
        return result
    meta = result.get("_meta")
    return {**result, "_meta": {**(meta if isinstance(meta, dict) else {}), META_KEY: etag}}
