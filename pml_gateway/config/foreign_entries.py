"""Entries of servers as other programs write them, in the one shape that the gateway's definitions have."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from pml_gateway.secrets.env_file import parse_env_text

FOREIGN_KEYS = frozenset(
    {
        # Other clients' keys, which mean nothing to a gateway and are not errors.
        *("alwaysAllow", "alwaysLoad", "autoApprove", "bundled", "description", "dev", "display_name", "gallery", "id"),
        *("name", "source", "trust", "version"),
    }
)

_RENAMED = {
    "args": ("arguments",),
    "cwd": ("workingDirectory", "working_directory", "workdir"),
    "env": ("environment", "envs"),
    "env_file": ("envFile",),
    "url": ("serverUrl", "server_url", "httpUrl", "uri", "endpoint"),
    "headers": ("http_headers",),
    "connect_timeout": ("startup_timeout_sec",),
    "call_timeout": ("tool_timeout_sec",),
    "enabled": ("isActive",),
}
"""Keys of the gateway, and what other clients call them."""

_PAIRS = {"env": "=", "headers": ":"}
_VARIABLE_LINE = re.compile(r"\s*(?:export\s+)?[A-Za-z_]\w*\s*=.*")


def in_one_shape(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry `raw` of any client as the gateway's definitions are written; unknown keys stay.

    Raises:
        ValueError: a value can mean several things; names the key.
    """
    # Clients write null and "" for what is not set.
    entry = {key: value for key, value in raw.items() if key not in FOREIGN_KEYS and value is not None}
    _unfold(entry)
    if "httpUrl" in entry and "url" not in entry:
        entry.setdefault("transport", "http")
    for key, others in _RENAMED.items():
        for other in others:
            if other in entry:
                entry.setdefault(key, entry.pop(other))
    for key in ("type", "transport"):
        if isinstance(entry.get(key), str) and not entry[key].strip():
            del entry[key]
    _split_command(entry)
    for key, mark in _PAIRS.items():
        if key in entry:
            entry[key] = dict(_pairs(key, entry[key], mark))
    _take_named_variables(entry)
    if isinstance(entry.get("disabled"), bool):
        entry["enabled"] = not entry.pop("disabled")
    timeout = entry.get("timeout")
    if isinstance(timeout, int | float) and timeout > 0:
        # Clients disagree on the unit: seconds below 1,000 and milliseconds above is what their docs show.
        entry.pop("timeout")
        entry.setdefault("call_timeout", timeout / 1000 if timeout >= 1000 else timeout)
    return entry


def _unfold(entry: dict[str, Any]) -> None:
    """Take what stands one level deeper: `transport: {type, url}`, `command: {path, args}`, `requestOptions`."""
    transport, command = entry.get("transport"), entry.get("command", entry.get("cmd"))
    if isinstance(transport, Mapping):
        del entry["transport"]
        entry.update({key: value for key, value in transport.items() if value is not None and key not in entry})
    entry.pop("cmd", None)
    match command:
        case Mapping():
            entry.pop("command", None)
            entry.update({key: command[key] for key in ("args", "env") if command.get(key) is not None})
            if command.get("path", command.get("command")) is not None:
                entry["command"] = command.get("path", command.get("command"))
        case None:
            pass
        case _:
            entry["command"] = command
    for key in ("requestOptions", "requestInit"):
        if isinstance(entry.get(key), Mapping):
            entry.setdefault("headers", entry.pop(key).get("headers"))


def _split_command(entry: dict[str, Any]) -> None:
    """Make one program and a list of arguments of `command: [npx, -y, x]` and `args: "-y x"`."""
    arguments = entry.get("args", ())
    if isinstance(arguments, str):
        try:
            arguments = shlex.split(arguments)
        except ValueError:
            raise ValueError('args: a quote is not closed; write a list, as ["-y", "a-server"]') from None
    match entry.get("command"):
        case [str(command), *first]:
            entry["command"] = command
            arguments = [*first, *arguments] if isinstance(arguments, list | tuple) else arguments
        case []:
            del entry["command"]
    if "args" in entry or arguments:
        entry["args"] = list(arguments) if isinstance(arguments, tuple) else arguments


def _pairs(key: str, value: object, mark: str) -> Iterator[tuple[str, Any]]:
    """Yield names and values of a mapping, or of a list of `NAME=value` or of `{name, value}`; without nulls."""
    if isinstance(value, str) and mark == "=" and all(map(_VARIABLE_LINE.fullmatch, value.strip().splitlines())):
        value = parse_env_text(value)
    match value:
        case Mapping():
            yield from ((str(name), item) for name, item in value.items() if item is not None)
        case list() | tuple():
            for position, item in enumerate(value):
                yield from _pair(f"{key}[{position}]", item, mark)
        case _:
            raise ValueError(f"{key}: write names with their values, as {_example(mark)}")


def _pair(key: str, item: object, mark: str) -> Iterator[tuple[str, Any]]:
    match item:
        case str() if mark in item and item.partition(mark)[0].strip():
            name, _, value = item.partition(mark)
            yield name.strip(), value if mark == "=" else value.strip()
        case str() if mark == "=" and re.fullmatch(r"[A-Z_][A-Z0-9_]*", item):
            # As in Docker: the variable is passed on. Anything else may be a value.
            yield item, f"${{env:{item}}}"
        case {"name": str(given), **rest} | {"key": str(given), **rest}:
            if rest.get("value") is not None:
                yield given, rest["value"]
        case Mapping() if item and not {"name", "key", "value"} & item.keys():
            yield from ((str(name), value) for name, value in item.items() if value is not None)
        case _:
            raise ValueError(f"{key}: write a name with its value, as {_example(mark)}")


def _example(mark: str) -> str:
    return '{"NAME": "value"}' if mark == "=" else '{"X-Name": "value"}'


def _take_named_variables(entry: dict[str, Any]) -> None:
    """Make references of variables that Codex and Goose give by name."""
    for key in ("env_vars", "env_keys"):
        for item in _listed(entry.pop(key, None)):
            name = item.get("name") if isinstance(item, Mapping) else item
            if isinstance(name, str):
                entry.setdefault("env", {}).setdefault(name, f"${{env:{name}}}")
    bearer, named = entry.pop("bearer_token_env_var", None), entry.pop("env_http_headers", None)
    headers = {name: f"${{env:{variable}}}" for name, variable in named.items()} if isinstance(named, Mapping) else {}
    if isinstance(bearer, str) and bearer:
        headers["Authorization"] = f"Bearer ${{env:{bearer}}}"
    if headers:
        entry["headers"] = headers | entry.get("headers", {})


def _listed(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []
