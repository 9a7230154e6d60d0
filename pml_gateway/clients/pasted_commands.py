"""Servers in pasted command lines: `claude mcp add`, `claude mcp add-json`, `codex mcp add`, `gemini mcp add`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

from pml_gateway.errors import UsageError

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


def command_line_entries(text: str) -> dict[str, Any]:
    """Return the servers that the command lines in `text` add, by name.

    Raises:
        UsageError: a line cannot be parsed, or has an unknown option.
    """
    found: dict[str, Any] = {}
    for match in _LINE.finditer(_CONTINUED.sub(" ", text)):
        command = _named(match)
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
    return _named(found) if found is not None else ""


def _named(match: re.Match[str]) -> str:
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
