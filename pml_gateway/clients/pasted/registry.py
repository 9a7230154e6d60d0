"""A registry's `server.json`: packages and remote addresses of one server, turned into an entry."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pml_gateway.errors import UsageError

_RUNNERS: Mapping[str, tuple[str, tuple[str, ...], str]] = {
    "npm": ("npx", ("-y",), "@"),
    "pypi": ("uvx", (), "@"),
    "oci": ("docker", ("run", "-i", "--rm"), ":"),
    "docker": ("docker", ("run", "-i", "--rm"), ":"),
    "nuget": ("dnx", ("--yes",), "@"),
}
"""Kinds of packages: the command that runs them, its default arguments, and the separator before a version."""

_PLACE = re.compile(r"\{([A-Za-z_][\w-]*)\}")


@dataclass(slots=True)
class RegistryServer:
    """An entry in VS Code's form: `${input:X}` is a value to ask the user for, with its description in `inputs`."""

    name: str
    entry: dict[str, Any] = field(default_factory=dict, repr=False)
    inputs: dict[str, str] = field(default_factory=dict)


def is_registry_document(values: Mapping[str, Any]) -> bool:
    """Return True for a `server.json`, also inside a registry's response."""
    server = _server(values)
    return isinstance(server.get("name"), str) and any(isinstance(server.get(k), list) for k in ("packages", "remotes"))


def registry_server(values: Mapping[str, Any]) -> RegistryServer:
    """Return the server of a `server.json`: from its first runnable package, else from its address.

    Raises:
        UsageError: it has neither.
    """
    server = _server(values)
    found = RegistryServer(re.sub(r"\W+", "-", server["name"].rpartition("/")[2]).strip("-") or "server")
    packages = [each for each in _mappings(server.get("packages")) if _kind(each) in _RUNNERS]
    remotes = [each for each in _mappings(server.get("remotes")) if isinstance(each.get("url"), str)]
    if packages:
        _start(packages[0], found)
    elif remotes:
        _reach(remotes[0], found)
    else:
        kinds = ", ".join(dict.fromkeys(_kind(each) or "?" for each in _mappings(server.get("packages"))))
        raise UsageError(
            f"{server['name']} has no package that can be run here{f', only {kinds}' if kinds else ''}",
            hint=f"packages of {', '.join(dict.fromkeys(_RUNNERS))} can, and remote addresses",
        )
    return found


def _server(values: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = values.get("server")
    return inner if isinstance(inner, Mapping) else values


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _either(package: Mapping[str, Any], *keys: str) -> Any:
    """Return the value of the first of `keys` that exists: older documents use underscores."""
    return next((package[key] for key in keys if package.get(key)), None)


def _kind(package: Mapping[str, Any]) -> str:
    return str(_either(package, "registryType", "registry_type", "registry_name") or "").lower()


def _start(package: Mapping[str, Any], found: RegistryServer) -> None:
    command, arguments, mark = _RUNNERS[_kind(package)]
    command = str(_either(package, "runtimeHint", "runtime_hint") or command)
    environment = dict(_named(_either(package, "environmentVariables", "environment_variables"), found))
    runtime = list(_arguments(_either(package, "runtimeArguments", "runtime_arguments"), found))
    if command == "docker":
        if "run" not in runtime:
            runtime = [*arguments, *runtime]
        named = {word.partition("=")[0] for word in runtime}
        runtime += [word for name in environment if name not in named for word in ("-e", name)]
    identifier, version = str(_either(package, "identifier", "name") or ""), package.get("version")
    if version and mark not in identifier.rpartition("/")[2].lstrip("@"):
        identifier += f"{mark}{version}"
    words = list(_arguments(_either(package, "packageArguments", "package_arguments"), found))
    found.entry = {"command": command, "args": [*(runtime or arguments), identifier, *words], "env": environment}
    transport = package.get("transport")
    if isinstance(transport, Mapping) and transport.get("url"):
        raise UsageError(
            f"{found.name} serves over HTTP once it is started, at {transport['url']}",
            hint=f"start it by yourself, then: pml add {found.name} {transport['url']}",
        )


def _reach(remote: Mapping[str, Any], found: RegistryServer) -> None:
    headers = dict(_named(remote.get("headers"), found))
    kind = _either(remote, "type", "transport_type")
    found.entry = {"type": kind, "url": _filled(remote["url"], remote, found), "headers": headers}


def _named(items: object, found: RegistryServer) -> Iterator[tuple[str, str]]:
    """Yield variables or headers with their values; optional ones without a value are left out."""
    for item in _mappings(items):
        name = item.get("name")
        if isinstance(name, str) and (value := _value(item, name, found)) is not None:
            yield name, value


def _arguments(items: object, found: RegistryServer) -> Iterator[str]:
    for item in _mappings(items):
        name = item.get("name") if item.get("type") == "named" else None
        wish = str(item.get("valueHint") or item.get("value_hint") or item.get("name") or "argument").lstrip("-")
        is_flag = name and not any(item.get(key) for key in ("value", "default", "valueHint", "isRequired"))
        value = None if is_flag else _value(item, wish, found)
        if name and (is_flag or value is not None):
            yield name
        if value is not None:
            yield value


def _value(item: Mapping[str, Any], wish: str, found: RegistryServer) -> str | None:
    for key in ("value", "default"):
        if item.get(key) not in (None, ""):
            return _filled(str(item[key]), item, found)
    is_required = _either(item, "isRequired", "is_required")
    return _asked(wish, item, found) if is_required else None


def _filled(text: str, item: Mapping[str, Any], found: RegistryServer) -> str:
    """Return `text` with each `{variable}` replaced by its value, or by an input to ask for."""
    variables = item.get("variables")
    known = variables if isinstance(variables, Mapping) else {}

    def filled(match: re.Match[str]) -> str:
        variable = known.get(match[1])
        if not isinstance(variable, Mapping):
            return match[0] if not known else _asked(match[1], {}, found)
        return str(variable.get("value") or variable.get("default") or _asked(match[1], variable, found))

    return _PLACE.sub(filled, text)


def _asked(wish: str, item: Mapping[str, Any], found: RegistryServer) -> str:
    found.inputs.setdefault(wish, str(item.get("description") or ""))
    return f"${{input:{wish}}}"
