"""Repair of malformed server results, so that a single formal fault does not lose the outcome of a request.

Clients reject a whole result because of one field of the wrong type, although the request has already been executed.
Fields that carry content are kept: as the block they are meant to be, else as text. Fields that only describe content
are dropped if they are invalid. A result without faults is returned as the same object.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pml_gateway.results.content import MEDIA, media_block
from pml_gateway.types import JsonObject

MAX_COMPLETIONS = 100
"""Maximum number of values in one completion, set by the protocol."""

CHECKED_CHARACTERS = 64 * 1024
"""Characters checked at each end of base64 text: faults show there, and large media stay cheap to check."""

MAX_OUTPUT_TEXT = 256 * 1024
"""Maximum characters of text parsed as JSON for a tool's declared output, which takes a few milliseconds."""

SHOWN_CHARACTERS = 1000
"""Length above which base64 text in a block of an unknown type is described instead of shown."""

_BASE64 = str.maketrans("", "", string.ascii_letters + string.digits + "+/=" + string.whitespace)
_DATA_URL = re.compile(r"data:(?P<mime>[\w.+-]+/[\w.+-]+)?(?:;[\w=.+-]+)*;base64,")
_MIME_BY_START: Mapping[str, str] = {
    "iVBORw0KGgo": "image/png",
    "/9j/": "image/jpeg",
    "R0lGOD": "image/gif",
    "UklGR": "image/webp",
    "PHN2Zy": "image/svg+xml",
    "SUQz": "audio/mpeg",
    "T2dnUw": "audio/ogg",
}
_AUDIO_IN_RIFF = "audio/wav"
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)")
_ROLES = ("user", "assistant")
_OTHER_ROLES = {"ai": "assistant", "model": "assistant", "bot": "assistant"}
_FALSE = ("", "false", "no", "0", "null", "none")

_Valid = Callable[[Any], bool]

_ANNOTATIONS: Mapping[str, _Valid] = {
    "audience": lambda value: isinstance(value, list) and all(role in _ROLES for role in value),
    "priority": lambda value: _is_number(value) and 0 <= value <= 1,
    "lastModified": lambda value: _is_text(value) and _TIME.fullmatch(value) is not None,
}


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_icons(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(icon, dict) and _is_text(icon.get("src")) and None not in icon.values() for icon in value
    )


_RESULT: Mapping[str, _Valid] = {
    "_meta": _is_object,
    "ttlMs": lambda value: _is_integer(value) and value >= 0,
    "cacheScope": lambda value: value in ("public", "private"),
    "description": _is_text,
    "resultType": _is_text,
}
_BLOCK: Mapping[str, _Valid] = {
    "_meta": _is_object,
    "annotations": _is_object,
    "mimeType": _is_text,
    "title": _is_text,
    "description": _is_text,
    "size": _is_integer,
    "icons": _are_icons,
}
_COMPLETION: Mapping[str, _Valid] = {"total": _is_integer, "hasMore": lambda value: isinstance(value, bool)}
"""Descriptive fields, which are dropped if their type is wrong."""


def repaired(result: JsonObject, method: str, uri: str = "") -> JsonObject:
    """Return a request's result in the form that the protocol requires; the same object if it has no fault.

    Args:
        result: the result as the server sent it.
        method: the request's method.
        uri: the requested resource; filled in for contents without a URI.
    """
    given = _without_faults(result, _RESULT)
    if given.get("resultType") not in (None, "", "complete"):
        # A question to the client, or a result that no client of another version can handle.
        return given
    match method:
        case "tools/call":
            return _tool_result(given)
        case "prompts/get":
            return _changed(given, "messages", _messages(given))
        case "resources/read":
            return _changed(given, "contents", _contents(given, uri))
        case "completion/complete":
            return _changed(given, "completion", _completion(given))
    return given


def with_declared_output(result: JsonObject) -> JsonObject:
    """Return the result with its JSON text as structured content, if the tool declares its output and has none.

    Client SDKs raise an error without it.
    """
    match result:
        case {"structuredContent": structured} if structured is not None:
            return result
        case {"isError": True}:
            return result
        case {"content": [{"type": "text", "text": str(text)}]} if len(text) <= MAX_OUTPUT_TEXT:
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                return result
            return {**result, "structuredContent": value} if isinstance(value, dict) else result
    return result


def with_structure_as_text(result: JsonObject, *, only_if_empty: bool) -> JsonObject:
    """Return the result with its structured content as JSON text among its blocks, unless they already say the same.

    Args:
        result: a result with structured content and a list of blocks.
        only_if_empty: leave existing blocks alone, whatever they say.
    """
    blocks, structured = result["content"], result["structuredContent"]
    if blocks and (only_if_empty or _says(blocks, structured)):
        return result
    return {**result, "content": [*blocks, as_text(structured)]}


def _says(blocks: list[Any], value: Any) -> bool:
    """Return True if one text block, or all of them as a list, hold this JSON value."""
    held: list[Any] = []
    for block in blocks:
        if block.get("type") == "text":
            try:
                held.append(json.loads(block["text"]))
            except (ValueError, RecursionError):
                held.append(block["text"])
    return value in held or value == held


def as_text(value: Any) -> JsonObject:
    """Return a text block with the value, as JSON if it is not text."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return {"type": "text", "text": text}


def _tool_result(result: JsonObject) -> JsonObject:
    given = result.get("content")
    if given is None and "toolResult" in result:
        # The result format that predates content blocks.
        given = result["toolResult"]
    if given is None:
        structured = result.get("structuredContent")
        blocks = [] if structured is None else [as_text(structured)]
    else:
        blocks = _each(_listed(given), _block)
    result = _changed(result, "content", blocks)
    failed = result.get("isError", False)
    if isinstance(failed, bool):
        return result
    if failed is None:
        return _without(result, "isError")
    return {**result, "isError": bool(failed) and str(failed).strip().lower() not in _FALSE}


def _listed(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]


def _block(given: Any) -> JsonObject:
    """Return a repaired content block; an unknown or unreadable one becomes a text that describes it."""
    if not isinstance(given, dict):
        return as_text(given)
    block = _without_faults(given, _BLOCK)
    if "annotations" in block:
        block = _changed(block, "annotations", _without_faults(block["annotations"], _ANNOTATIONS))
    match block:
        case {"type": "text", "text": str()}:
            return block
        case {"type": "text", "text": None}:
            return {**block, "text": ""}
        case {"type": "text", "text": value}:
            return {**block, **as_text(value)}
        case {"type": "image" | "audio", "data": str()}:
            return _media(block)
        case {"type": "resource_link", "uri": str(uri)}:
            return _changed(block, "name", block["name"] if _is_text(block.get("name")) else block.get("title") or uri)
        case {"type": "resource", "resource": dict(resource)}:
            return _embedded(block, resource)
        case {"type": "resource", "uri": str()}:
            # The resource's fields are one level too high.
            return _embedded({"type": "resource"}, {key: value for key, value in block.items() if key != "type"})
        case {"text": str()} if not isinstance(block.get("type"), str):
            return {**block, "type": "text"}
        case {"data": str(), "mimeType": str(mime)} if mime.partition("/")[0] in MEDIA and "type" not in block:
            return _media({**block, "type": mime.partition("/")[0]})
    return _described(block)


def _described(block: JsonObject) -> JsonObject:
    """Return an unknown block as JSON text, with long base64 strings described, since models cannot read them."""

    def shown(value: Any) -> Any:
        if isinstance(value, str) and len(value) > SHOWN_CHARACTERS and " " not in value and _is_base64(value):
            return f"<{len(value):,} characters of base64>"
        return value

    return as_text({key: shown(value) for key, value in block.items()})


def _media(block: JsonObject) -> JsonObject:
    data, mime = block["data"], block.get("mimeType")
    if (found := _DATA_URL.match(data)) is not None:
        data, mime = data[found.end() :], mime or found["mime"]
    if ("-" in data[:CHECKED_CHARACTERS] or "_" in data[:CHECKED_CHARACTERS]) and found is None:
        data = data.replace("-", "+").replace("_", "/")
    if not _is_base64(data):
        return _described(block)
    if mime is None:
        known = next((known for start, known in _MIME_BY_START.items() if data.startswith(start)), None)
        mime = _AUDIO_IN_RIFF if block["type"] == "audio" and known == "image/webp" else known
    if mime is None:
        return _described(block)
    return _changed(_changed(block, "data", data), "mimeType", mime)


def _is_base64(data: str) -> bool:
    ends = data if len(data) <= 2 * CHECKED_CHARACTERS else data[:CHECKED_CHARACTERS] + data[-CHECKED_CHARACTERS:]
    padding = len(ends) - len(ends.rstrip("= \r\n"))
    return not ends.translate(_BASE64) and (len(data) - padding) % 4 != 1


def _embedded(block: JsonObject, resource: JsonObject) -> JsonObject:
    """Return an embedded resource; without a URI it is invalid, so return its content as a block of its own."""
    resource = _resource(resource, "")
    if resource["uri"]:
        return _changed(block, "resource", resource)
    if "text" in resource:
        return as_text(resource["text"])
    return media_block(resource.get("mimeType"), resource["blob"]) or _described(block)


def _resource(given: Any, uri: str) -> JsonObject:
    """Return a resource's contents with its URI and either text or a blob."""
    if not isinstance(given, dict):
        return {"uri": uri, "text": as_text(given)["text"]}
    item = _without_faults(given, _BLOCK)
    item = _changed(item, "uri", item["uri"] if _is_text(item.get("uri")) else uri)
    text, blob = item.get("text"), item.get("blob")
    if isinstance(blob, str) and text is None:
        if (found := _DATA_URL.match(blob)) is not None:
            blob = blob[found.end() :]
        if _is_base64(blob):
            return _changed(_without(item, "text"), "blob", blob)
        text = blob
    if isinstance(text, str) and "blob" not in item:
        return item
    described = text
    if text is None:
        # Neither text nor blob: show the remaining fields.
        rest = {key: value for key, value in item.items() if key not in ("uri", "text", "blob", *_BLOCK)}
        described = rest or ""
    return {**_without(item, "blob"), "text": str(as_text(described)["text"])}


def _contents(result: JsonObject, uri: str) -> list[Any]:
    given = result.get("contents")
    if given is None:
        given = result.get("content")
    if given is None:
        given = [result] if "text" in result or "blob" in result else []
    return _each(_listed(given), lambda item: _resource(item, uri))


def _messages(result: JsonObject) -> list[Any]:
    given = result.get("messages")
    if given is None:
        given = result.get("content", [])
    messages = _listed([] if given is None else given)
    if any(isinstance(each, dict) and isinstance(each.get("content"), list) for each in messages):
        messages = [one for each in messages for one in _single(each)]
    return _each(messages, _message)


def _single(message: Any) -> Iterable[Any]:
    """Split a message with several blocks into several messages: clients accept one block per message."""
    if isinstance(message, dict) and isinstance(message.get("content"), list):
        return [{**message, "content": block} for block in message["content"]]
    return [message]


def _message(given: Any) -> JsonObject:
    if not isinstance(given, dict) or ("content" not in given and "type" in given):
        return {"role": "user", "content": _block(given)}
    message: JsonObject = given
    role = message.get("role")
    if role not in _ROLES:
        role = _OTHER_ROLES.get(str(role).lower(), "user")
    content = message.get("content")
    return _changed(_changed(message, "role", role), "content", _block("" if content is None else content))


def _completion(result: JsonObject) -> JsonObject:
    given = result.get("completion")
    if given is None:
        given = result.get("values")
    completion: JsonObject = _without_faults(given, _COMPLETION) if isinstance(given, dict) else {"values": given}
    values = completion.get("values")
    texts = _each(_listed([] if values is None else values), lambda value: as_text(value)["text"])
    if len(texts) > MAX_COMPLETIONS:
        return {"total": len(texts), **completion, "values": texts[:MAX_COMPLETIONS], "hasMore": True}
    return _changed(completion, "values", texts)


def _each(items: list[Any], repair: Callable[[Any], Any]) -> list[Any]:
    """Return the repaired items; the same list if none changed."""
    repaired_items = [repair(item) for item in items]
    is_same = all(new is old for new, old in zip(repaired_items, items, strict=True))
    return items if is_same else repaired_items


def _without_faults(item: JsonObject, fields: Mapping[str, _Valid]) -> JsonObject:
    """Return the object without those of the given fields that are invalid."""
    faults = [key for key in fields.keys() & item.keys() if not fields[key](item[key])]
    return {key: value for key, value in item.items() if key not in faults} if faults else item


def _without(item: JsonObject, key: str) -> JsonObject:
    return {name: value for name, value in item.items() if name != key} if key in item else item


def _changed(item: JsonObject, key: str, value: Any) -> JsonObject:
    """Return the object with this value for the key; the same object if it has it already."""
    return item if key in item and item[key] is value else {**item, key: value}
