"""Pasted servers: the block of any client, whole or in part, with surrounding text of a web page."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pml_gateway.clients import jsonc
from pml_gateway.clients.block import Block
from pml_gateway.clients.discover import ClientFile, asked_inputs, known_client
from pml_gateway.clients.model import FileFormat, FileLocation, KnownClient, Scope, Variables
from pml_gateway.clients.pasted_commands import command_in, command_line_entries
from pml_gateway.config.advice import RUNNERS
from pml_gateway.config.document import parse
from pml_gateway.errors import ConfigurationError, UsageError

MAX_CHARACTERS = 1_000_000
"""Maximum characters of pasted text; longer client files contain mostly other things."""

_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[^\n]*\n(.*?)(?:^[ \t]*(?:```|~~~)|\Z)", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(r"^[ \t]*\[[ \t]*mcp_servers\b", re.MULTILINE)
_URL = re.compile(r"https?://\S+")
_QUOTES = str.maketrans("\u201c\u201d\u201e\u00a0", '""" ')
"""Typographic quotes and spaces, as web pages and chats produce them."""

_BLOCKS: Mapping[str, str] = {
    "mcpServers": "",
    "servers": "vscode",
    "mcp.servers": "vscode",
    "context_servers": "zed",
    "mcp_servers": "codex",
    "amp.mcpServers": "",
    "extensions": "",
    "mcp": "",
}
"""Keys of server blocks, and the client that uses each; if several do, the entries decide."""

MAX_DEPTH = 4
"""Maximum number of nested keys around the servers, as in the files of Claude Code."""

_WHAT = frozenset({"command", "cmd", "url", "serverUrl", "httpUrl", "server_url", "uri", "endpoint"})
_PREFIXED = re.compile(r"\$\{(?:env|input):|\$\{(?:workspaceFolder|userHome)\}")
_YAML = re.compile(r"^[ \t]*(?:-[ \t]+)?[\w.-]+:(?:[ \t]|$)", re.MULTILINE)
_SHAPES = ('{"mcpServers": {...}}', '"NAME": {...}', "[mcp_servers.NAME]", "claude mcp add ...")

_PastedServers = tuple[dict[str, Any], tuple[str, ...], dict[str, str]]
"""Servers by name, the keys around them, and the inputs to ask the user for."""


def pasted(text: str, name: str | None = None) -> ClientFile:
    """Return pasted text as a file of the client with this form; a single server gets the given `name`.

    Raises:
        UsageError: it has no server, several for one name, or one without a name.
    """
    if len(text) > MAX_CHARACTERS:
        raise UsageError(f"what was pasted is longer than {MAX_CHARACTERS} characters", hint="paste the servers alone")
    entries, block, inputs = _read(text, name)
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
        inputs=inputs,
        source="" if block and _BLOCKS.get(block[-1]) else command_in(text) or "pasted",
    )


def _read(text: str, name: str | None) -> _PastedServers:
    """Return the servers of the first reading that has any."""
    if entries := command_line_entries(text):
        return entries, (), {}
    if name is not None and _URL.fullmatch(text.strip()):
        return {name: {"url": text.strip()}}, (), {}
    words = text.split()
    if name is not None and words and words[0] in RUNNERS and "\n" not in text.strip():
        return {name: {"command": words[0], "args": text.strip().removeprefix(words[0])}}, (), {}
    problem, is_read = "", False
    for reading in _readings(text):
        try:
            values = _values(reading)
        except (tomllib.TOMLDecodeError, jsonc.JsonTextError) as error:
            problem = problem or f": {error}"
            continue
        is_read = True
        if (found := _servers_in(values, name)) is not None:
            return found
    # If any reading could be parsed but has no server, the errors of the others do not matter.
    raise UsageError(
        f"no server is in what was pasted{'' if is_read else problem}", hint=f"it looks like {' or '.join(_SHAPES)}"
    )


def _values(reading: str) -> Any:
    if _TABLE.search(reading):
        return tomllib.loads(reading)
    try:
        return jsonc.parse(reading)
    except jsonc.JsonTextError:
        if reading.lstrip()[:1] not in ("{", "[", '"') and _YAML.search(reading):
            # YAML of Continue or Goose: a mapping, or a list of servers.
            with suppress(ConfigurationError):
                text = f"servers:\n{reading}" if reading.startswith("-") else reading
                return parse(text, "user", Path("what was pasted")).values
        raise


def _servers_in(values: Any, name: str | None) -> _PastedServers | None:
    if isinstance(values, list):
        values = {"servers": values}
    if not isinstance(values, dict):
        return None
    for path, section in _sections(values):
        if path and path[-1] in _BLOCKS and (entries := _by_name(section)):
            return entries, path, dict(asked_inputs(values))
    if _is_entry(values):
        return _named(values, name), (), {}
    return (_by_name(values), (), {}) if _holds_servers(values) else None


def _sections(values: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every section, outer ones before the sections inside them."""
    level: list[tuple[tuple[str, ...], Any]] = [((), values)]
    for _ in range(MAX_DEPTH):
        yield from level
        level = [
            ((*path, key), item)
            for path, section in level
            if isinstance(section, dict)
            for key, item in section.items()
        ]


def _by_name(section: Any) -> dict[str, Any]:
    """Return the servers of a section: a mapping, or a list of servers with names; empty if there are none."""
    if isinstance(section, list):
        named = [(each, each.get("name") or each.get("id")) for each in section if isinstance(each, dict)]
        section = {key: _without_name(each) for each, key in named if isinstance(key, str) and key}
    if not _holds_servers(section):
        return {}
    return {key: entry for key, entry in section.items() if isinstance(entry, dict)}


def _readings(text: str) -> Iterator[str]:
    """Yield candidates for the block: fenced code, text in brackets, and text with missing brackets added."""
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


def _is_entry(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    is_nested = isinstance(value.get("transport"), dict) and _is_entry(value["transport"])
    return is_nested or any(isinstance(value.get(key), str | list | dict) for key in _WHAT)


def _holds_servers(value: object) -> bool:
    return isinstance(value, dict) and any(_is_entry(entry) for entry in value.values()) and not _is_entry(value)


def _named(entry: dict[str, Any], name: str | None) -> dict[str, Any]:
    own = entry.get("name")
    given = name or (own if isinstance(own, str) and own else None)
    if given is None:
        raise UsageError("the server that was pasted has no name", hint="name it: pml add NAME")
    return {given: _without_name(entry)}


def _without_name(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != "name"}


def _client(block: tuple[str, ...], entries: Mapping[str, Any]) -> KnownClient:
    """Return the client that uses this form: by its block, else by its specific keys and variables."""
    known = _BLOCKS.get(block[-1], "") if block else ""
    keys = {key for entry in entries.values() if isinstance(entry, dict) for key in entry}
    if not known:
        known = next(
            (client for key, client in (("httpUrl", "gemini-cli"), ("serverUrl", "windsurf")) if key in keys), ""
        )
    if not known:
        known = "cursor" if _PREFIXED.search(repr(entries)) else "mcp-json"
    client = known_client(known)
    return client if client.file_format is FileFormat.TOML else replace(client, variables=Variables.ANY)
