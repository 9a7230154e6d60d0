"""Servers as people paste them: the block of any client, whole or in part, with what stands around it on a page."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pml_gateway.clients import jsonc
from pml_gateway.clients.block import Block
from pml_gateway.clients.discover import ClientFile, asked_inputs, known_client
from pml_gateway.clients.model import FileLocation, KnownClient, Scope
from pml_gateway.errors import UsageError

MAX_CHARACTERS = 1_000_000
"""Of what is pasted; the files of clients that hold more keep other things in them."""

_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[^\n]*\n(.*?)(?:^[ \t]*(?:```|~~~)|\Z)", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(r"^[ \t]*\[[ \t]*mcp_servers\b", re.MULTILINE)
_QUOTES = str.maketrans("\u201c\u201d\u201e\u00a0", '""" ')
"""What pages and chats make of quotes and spaces."""

_BLOCKS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("mcpServers",), ""),
    (("mcp", "servers"), "vscode"),
    (("servers",), "vscode"),
    (("context_servers",), "zed"),
    (("mcp_servers",), "codex"),
    (("mcp",), ""),
)
"""Where servers stand, and the client that has them there; where several do, their own words decide."""

_WHAT = frozenset({"command", "url", "serverUrl", "httpUrl"})
_PREFIXED = re.compile(r"\$\{(?:env|input):|\$\{(?:workspaceFolder|userHome)\}")
_SHAPES = ('{"mcpServers": {...}}', '"NAME": {...}', "[mcp_servers.NAME]")


def pasted(text: str, name: str | None = None) -> ClientFile:
    """What was pasted, as a file of the client that writes servers so; a single server takes the `name`.

    Raises:
        UsageError: it holds no server, several for one name, or one without a name.
    """
    if len(text) > MAX_CHARACTERS:
        raise UsageError(f"what was pasted is longer than {MAX_CHARACTERS} characters", hint="paste the servers alone")
    values, block = _read(text)
    entries = _named(values, name) if not block else dict(_at(values, block) or {})
    if name is not None and set(entries) != {name}:
        if len(entries) != 1:
            raise UsageError(
                f"what was pasted has {len(entries)} servers: {', '.join(entries)}", hint="leave out the name"
            )
        entries = {name: next(iter(entries.values()))}
    client = _client(block, entries)
    place = FileLocation(Scope.PROJECT, "", block)
    return ClientFile(
        client,
        place,
        Path("what was pasted"),
        Block(client.file_format, block),
        exists=True,
        entries=entries,
        inputs=dict(asked_inputs(values)),
    )


def _read(text: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The values of the first reading that holds servers, and where they stand in it; nowhere for a bare entry."""
    problem, is_read = "", False
    for reading in _readings(text):
        try:
            values = tomllib.loads(reading) if _TABLE.search(reading) else jsonc.parse(reading)
        except tomllib.TOMLDecodeError as error:
            problem = problem or f": {error}"
            continue
        except jsonc.JsonTextError as error:
            problem = problem or f": {error}"
            continue
        is_read = True
        if not isinstance(values, dict):
            continue
        block = next((path for path, _ in _BLOCKS if _holds_servers(_at(values, path))), None)
        if block is not None:
            return values, block
        if _is_entry(values) or _holds_servers(values):
            return values, ()
    # What could be read has no server in it, however the other readings of it fail.
    raise UsageError(
        f"no server is in what was pasted{'' if is_read else problem}", hint=f"it looks like {' or '.join(_SHAPES)}"
    )


def _readings(text: str) -> Iterator[str]:
    """Texts that may be the block: what a fence is around, what brackets are around, with brackets that are missing."""
    plain = text.removeprefix(jsonc.BOM).replace("\r\n", "\n").strip()
    for whole in dict.fromkeys((plain, plain.translate(_QUOTES))):
        for part in (*_FENCE.findall(whole), whole):
            part = part.strip()
            if _TABLE.search(part):
                yield part
                continue
            yield part
            yield f"{{{part}\n}}"
            opened, closed, quoted = part.find("{"), part.rfind("}"), part.find('"')
            if 0 <= opened < closed:
                if 0 <= quoted < opened:
                    yield f"{{{part[quoted : closed + 1]}\n}}"
                yield part[opened : closed + 1]


def _at(values: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    section: Any = values
    for step in path:
        section = section.get(step) if isinstance(section, dict) else None
    return section


def _is_entry(value: object) -> bool:
    return isinstance(value, dict) and any(isinstance(value.get(key), str | list | dict) for key in _WHAT)


def _holds_servers(value: object) -> bool:
    return isinstance(value, dict) and any(_is_entry(entry) for entry in value.values()) and not _is_entry(value)


def _named(values: dict[str, Any], name: str | None) -> dict[str, Any]:
    if not _is_entry(values):
        return {key: entry for key, entry in values.items() if isinstance(entry, dict)}
    own = values.get("name")
    given = name or (own if isinstance(own, str) and own else None)
    if given is None:
        raise UsageError("the server that was pasted has no name", hint="name it: pml add NAME")
    return {given: {key: value for key, value in values.items() if key != "name"}}


def _client(block: tuple[str, ...], entries: Mapping[str, Any]) -> KnownClient:
    """Who writes servers so: by where they stand, then by keys and variables that only some have."""
    known = next((client for path, client in _BLOCKS if path == block), "")
    keys = {key for entry in entries.values() if isinstance(entry, dict) for key in entry}
    if not known:
        known = next(
            (client for key, client in (("httpUrl", "gemini-cli"), ("serverUrl", "windsurf")) if key in keys), ""
        )
    if not known:
        known = "cursor" if _PREFIXED.search(repr(entries)) else "mcp-json"
    return known_client(known)
