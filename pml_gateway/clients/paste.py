"""Pasted servers: the block of any client, whole or in part, or command lines that add one, amid text of a web page."""

from __future__ import annotations

import json
import re
import shlex
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

_LINE = re.compile(
    r"^[ \t]*(?:[$>#%][ \t]+)?(?:[A-Z_]+=\S+[ \t]+)*(?P<line>(?:npx[ \t]+(?:-y[ \t]+)?)?(?P<program>\S*?)"
    r"(?:[ \t]+mcp[ \t]+(?P<add>add|add-json)|[ \t]+--add-mcp)(?=[ \t]).*)$",
    re.MULTILINE,
)

_CONTINUED = re.compile(r"[ \t]*[\\`^][ \t]*\n[ \t]*")

_UNQUOTED = re.compile(r"'[^']*'|\\.|\$\(pwd\)|`pwd`|\$\{?PWD\b\}?|\$(?P<name>[A-Za-z_]\w*)")

_IGNORED = frozenset(
    {
        *("-s", "--scope", "--description", "--include-tools", "--exclude-tools", "-c", "--config", "--enable"),
        *("--disable", "--oauth-resource", "-p", "--profile", "--tools"),
    }
)
"""Options with a value that the gateway ignores, or configures elsewhere."""

_FLAGS = frozenset({"--trust", "--debug", "-d", "--strict", "--no-browser"})

_VALUES = {
    **dict.fromkeys(("-t", "--transport", "--type"), "transport"),
    **dict.fromkeys(("-e", "--env"), "env"),
    **dict.fromkeys(("-H", "--header"), "headers"),
    **dict.fromkeys(("--client-id", "--oauth-client-id"), "client_id"),
    "--callback-port": "callbackPort",
    "--scopes": "scopes",
    "--timeout": "timeout",
    "--cwd": "cwd",
    "--url": "url",
    "--bearer-token-env-var": "bearer_token_env_var",
}

_LISTS = {"env": re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL), "headers": re.compile(r"[\w-]+:\s.*", re.DOTALL)}
"""Options that take several values, and the form of further ones: Claude Code reads until the next option."""

_LOGIN = ("client_id", "client_secret", "callbackPort", "scopes")


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


def command_line_entries(text: str) -> dict[str, Any]:
    """Return the servers that the command lines in `text` add, by name.

    Raises:
        UsageError: a line cannot be parsed, or has an unknown option.
    """
    found: dict[str, Any] = {}
    for match in _LINE.finditer(_CONTINUED.sub(" ", text)):
        command = _command_of(match)
        try:
            words = shlex.split(_UNQUOTED.sub(_variable, match["line"]), comments=True)
        except ValueError:
            raise UsageError(f"a quote is not closed in `{command}`", hint="paste the whole command") from None
        while words.pop(0) not in ("add", "add-json", "--add-mcp"):
            pass
        name, entry = _Reader(command, words).server() if match["add"] == "add" else _of_json(command, words)
        found[name] = entry
    return found


def command_in(text: str) -> str:
    """Return the command that `command_line_entries` reads first: `claude mcp add`; empty if there is none."""
    found = _LINE.search(_CONTINUED.sub(" ", text))
    return _command_of(found) if found is not None else ""


def _command_of(match: re.Match[str]) -> str:
    program = re.split(r"[/\\]", match["program"])[-1]
    return f"{program} mcp {match['add']}" if match["add"] else f"{program} --add-mcp"


def _variable(match: re.Match[str]) -> str:
    """Return a variable in braces, which mark it in any context."""
    if match["name"] and match["name"] != "PWD":
        return f"${{{match['name']}}}"
    return match[0] if match[0][0] in "'\\" else "${workspaceFolder}"


def _of_json(command: str, words: list[str]) -> tuple[str, Any]:
    text = next((word for word in words if word.lstrip().startswith("{")), None)
    try:
        entry = json.loads(text) if text is not None else None
    except ValueError as error:
        raise UsageError(f"the JSON of `{command}` is broken: {error}", hint="paste it again") from None
    names = [word for word in words[: words.index(text)] if not word.startswith("-")] if text is not None else []
    if not isinstance(entry, dict) or not (names or isinstance(entry.get("name"), str)):
        raise UsageError(f"`{command}` names no server", hint="paste the whole command")
    return names[-1] if names else entry["name"], entry


class _Reader:
    """A parser of the words after `mcp add`."""

    def __init__(self, command: str, words: list[str]) -> None:
        self._command, self._words = command, words
        self._given: dict[str, Any] = {}

    def server(self) -> tuple[str, dict[str, Any]]:
        """Return the name and the entry of the server."""
        plain = list(self._plain_words())
        name, *rest = plain or [""]
        entry = self._given
        if not name or not (rest or "url" in entry):
            raise UsageError(f"`{self._command}` names no server", hint="paste the whole command")
        if rest and "://" in rest[0]:
            entry["url"] = rest[0]
        elif rest:
            entry["command"], entry["args"] = rest[0], rest[1:]
        if login := {key: entry.pop(key) for key in _LOGIN if key in entry}:
            entry["oauth"] = login
        return name, entry

    def _plain_words(self) -> Iterator[str]:
        while self._words:
            word = self._words.pop(0)
            if word == "--":
                yield from self._words
                return
            if word.startswith("-") and len(word) > 1:
                self._take(word)
            else:
                yield word

    def _take(self, word: str) -> None:
        option, is_joined, value = word.partition("=")
        if option in _FLAGS:
            return
        if option == "--client-secret":
            # Claude Code prompts for it, or reads this variable.
            self._given["client_secret"] = "${env:MCP_CLIENT_SECRET}"
            return
        if option not in _VALUES and option not in _IGNORED:
            hint = "put the server's own options behind --" if "--" not in self._words else "leave it out"
            raise UsageError(f"unknown option {option!r} of `{self._command}`", hint=hint)
        if not is_joined:
            if not self._words:
                raise UsageError(f"{option} has no value in `{self._command}`", hint="paste the whole command")
            value = self._words.pop(0)
        key = _VALUES.get(option)
        if key in _LISTS:
            values = self._given.setdefault(key, [])
            values.append(value)
            while self._words and _LISTS[key].fullmatch(self._words[0]):
                values.append(self._words.pop(0))
        elif key is not None:
            self._given[key] = float(value) if key == "timeout" and value.isdecimal() else value
        if key == "callbackPort" and value.isdecimal():
            self._given[key] = int(value)
