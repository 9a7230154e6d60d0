"""Results of servers in the shapes that clients accept: one fault of form does not cost what a request brought.

Clients refuse a whole result for one field of the wrong type, and the request has been executed by then. What carries
content is kept: as the block it is meant to be, else as text. What only describes content is dropped where it is not
valid. A result without faults is returned as the same object.
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
"""Values of one completion that the protocol allows."""

CHECKED_CHARACTERS = 64 * 1024
"""Characters at each end of base64 text that are checked: faults show there, and large media cost nothing."""

MAX_OUTPUT_TEXT = 256 * 1024
"""Characters of text that are read as JSON for the declared output of a tool, in a few milliseconds."""

SHOWN_CHARACTERS = 1000
"""Length from which base64 text in a block of an unknown type is described instead of shown."""

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
_ANNOTATIONS: Mapping[str, _Valid] = {
    "audience": lambda value: isinstance(value, list) and all(role in _ROLES for role in value),
    "priority": lambda value: _is_number(value) and 0 <= value <= 1,
    "lastModified": lambda value: _is_text(value) and _TIME.fullmatch(value) is not None,
}
_COMPLETION: Mapping[str, _Valid] = {"total": _is_integer, "hasMore": lambda value: isinstance(value, bool)}
"""Fields that describe: those of a wrong type are dropped."""


def repaired(result: JsonObject, method: str, uri: str = "") -> JsonObject:
    """The result of a request of this method in the shapes of the protocol; the same object if it has no fault.

    Args:
        result: as the server sent it.
        method: of the request.
        uri: the resource that was asked for; contents that do not name theirs get it.
    """
    given = _without_faults(result, _RESULT)
    if given.get("resultType") not in (None, "", "complete"):
        # A question to the client, or what no client of another version can be given.
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
    """The result of a tool that declares its output, with its JSON text as structured content where that is missing.

    Client SDKs raise without it.
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
    """The result with its structured content as JSON text among its blocks, unless they say the same.

    Args:
        result: with structured content and a list of blocks.
        only_if_empty: leave blocks that are there alone, whatever they say.
    """
    blocks, structured = result["content"], result["structuredContent"]
    if blocks and (only_if_empty or _says(blocks, structured)):
        return result
    return {**result, "content": [*blocks, as_text(structured)]}


def _says(blocks: list[Any], value: Any) -> bool:
    """Return True if a block of text, or all of them one by one, hold this JSON value."""
    held: list[Any] = []
    for block in blocks:
        if block.get("type") == "text":
            try:
                held.append(json.loads(block["text"]))
            except (ValueError, RecursionError):
                held.append(block["text"])
    return value in held or value == held


def as_text(value: Any) -> JsonObject:
    """A block of text: the value itself, or as JSON what is no text."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return {"type": "text", "text": text}


def _tool_result(result: JsonObject) -> JsonObject:
    given = result.get("content")
    if given is None and "toolResult" in result:
        # The shape before content blocks.
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
    """A block of content; of an unknown or unreadable one, a text that shows what it was."""
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
            # Its fields stand one level too high.
            return _embedded({"type": "resource"}, {key: value for key, value in block.items() if key != "type"})
        case {"text": str()} if not isinstance(block.get("type"), str):
            return {**block, "type": "text"}
        case {"data": str(), "mimeType": str(mime)} if mime.partition("/")[0] in MEDIA and "type" not in block:
            return _media({**block, "type": mime.partition("/")[0]})
    return _described(block)


def _described(block: JsonObject) -> JsonObject:
    """An unknown block as JSON, without the bytes that no reader of text can use."""

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
    """An embedded resource; without a URI it is none, and its content a block by itself."""
    resource = _resource(resource, "")
    if resource["uri"]:
        return _changed(block, "resource", resource)
    if "text" in resource:
        return as_text(resource["text"])
    return media_block(resource.get("mimeType"), resource["blob"]) or _described(block)


def _resource(given: Any, uri: str) -> JsonObject:
    """The contents of a resource: its URI, and a text or bytes."""
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
        # Neither of them: what it has besides its name is shown.
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
    """A message with several blocks as several messages: clients take one block a message."""
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
    """The repaired items; the same list if none changed."""
    repaired_items = [repair(item) for item in items]
    is_same = all(new is old for new, old in zip(repaired_items, items, strict=True))
    return items if is_same else repaired_items


def _without_faults(item: JsonObject, fields: Mapping[str, _Valid]) -> JsonObject:
    """The object without those of these fields that are not valid."""
    faults = [key for key in fields.keys() & item.keys() if not fields[key](item[key])]
    return {key: value for key, value in item.items() if key not in faults} if faults else item


def _without(item: JsonObject, key: str) -> JsonObject:
    return {name: value for name, value in item.items() if name != key} if key in item else item


def _changed(item: JsonObject, key: str, value: Any) -> JsonObject:
    """The object with this value; the same if it has it."""
    return item if key in item and item[key] is value else {**item, key: value}
