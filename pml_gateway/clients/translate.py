"""Servers as clients write them, translated into the gateway's definitions and compared."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from pydantic import ValidationError

from pml_gateway.clients.model import FileFormat, KnownClient, Scope, Variables
from pml_gateway.clients.places import Surroundings
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.errors import SecretError
from pml_gateway.secrets.references import resolve

_BRACED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\}")
_DOLLAR = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\}|\$([A-Za-z_][A-Za-z0-9_]*)")
_PREFIXED = re.compile(r"\$\{(env|input|command|config|file):([^{}]*)\}|\$\{([A-Za-z/][A-Za-z]*)\}")
_OURS = re.compile(r"\$(\{(?:(?:env|file):|(?:cwd|workspaceFolder)\}))")

_PLACEHOLDER = re.compile(
    r"\s*|<[^<>]*>|\[[^\[\]]*\]|x{3,}|\*{3,}|\.{3,}|changeme|replace[-_ ]?me|todo|"
    r"(?:insert|paste|your)[-_ ].*|.*[-_ ]here",
    re.IGNORECASE,
)
"""Values that stand where a person has to put theirs."""

_TAKEN = frozenset(
    {
        *("command", "args", "env", "environment", "cwd", "envFile", "env_file"),
        *("url", "serverUrl", "httpUrl", "headers", "http_headers", "type", "transport"),
        *("auth", "oauth", "disabled", "enabled", "timeout", "call_timeout", "connect_timeout"),
    }
)
_LIMITS = frozenset(
    {"includeTools", "excludeTools", "enabled_tools", "disabled_tools", "disabledTools", "enabledTools", "tools"}
)
_SIGN_IN = frozenset({"authProviderType", "headersHelper", "targetAudience", "targetServiceAccount"})


@dataclass(slots=True)
class Translation:
    """What one entry means.

    `variables` are the environment variables it reads: name, and what a person knows of it. `definition` is None
    where the entry cannot be used; `problems` then says why.
    """

    definition: dict[str, Any] | None = field(default=None, repr=False)
    variables: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class EntryOrigin:
    """Where an entry was found; `inputs` are the file's `inputs`, which VS Code asks a person for."""

    client: KnownClient
    scope: Scope
    surroundings: Surroundings
    inputs: Mapping[str, str] = field(default_factory=dict)


def translated(raw: object, origin: EntryOrigin) -> Translation:
    """The definition that does what `raw` does in its client."""
    found = Translation()
    if not isinstance(raw, dict):
        found.problems.append("is no object of settings")
        return found
    entry = {key: value for key, value in raw.items() if key in _TAKEN and value is not None}
    _say_what_is_lost(raw, found)
    if origin.client.file_format is FileFormat.TOML:
        _take_codex(raw, entry, found)
    if "command" not in entry and not {"url", "serverUrl", "httpUrl"} & entry.keys():
        found.problems.append(
            "names neither a command nor a url: an extension of the client starts it, which the gateway cannot"
            if raw.get("source") == "extension" or "settings" in raw
            else "names neither a command nor a url"
        )
        return found
    if origin.client.shape.bare_url and "url" in entry and not {"type", "transport", "httpUrl"} & entry.keys():
        entry["transport"] = origin.client.shape.bare_url
    try:
        model = UpstreamDefinition.model_validate(entry)
    except ValidationError as exc:
        found.problems += [_complaint(item) for item in exc.errors(include_url=False, include_input=False)]
        return found
    definition = model.model_dump(mode="json", exclude_defaults=True)
    if (
        model.transport is not None
        and model.transport is model.model_copy(update={"transport": None}).resolved_transport
    ):
        del definition["transport"]
    expanded = _expanded(definition, origin, found)
    _settle_folder(expanded, origin, found)
    found.definition = expanded
    return found


def is_placeholder(text: str) -> bool:
    """Whether a value only shows where a person has to put theirs."""
    return _PLACEHOLDER.fullmatch(text) is not None


def _say_what_is_lost(raw: Mapping[str, Any], found: Translation) -> None:
    if limits := sorted(_LIMITS & {key for key, value in raw.items() if value}):
        found.notes.append(f"{', '.join(limits)}: the gateway offers all tools; use gateway.blacklisted_tools")
    if sign_in := sorted(_SIGN_IN & raw.keys()):
        found.notes.append(
            f"{', '.join(sign_in)}: the client signs in by itself; the gateway does so with `pml login NAME`"
        )


def _take_codex(raw: Mapping[str, Any], entry: dict[str, Any], found: Translation) -> None:
    """The members that Codex alone has: values from variables by name, times in seconds."""
    environment = dict(entry.get("env") or {})
    for item in raw.get("env_vars") or ():
        name = item.get("name") if isinstance(item, dict) else item
        if isinstance(name, str):
            environment.setdefault(name, f"${{env:{name}}}")
            found.variables.setdefault(name, "")
    if environment:
        entry["env"] = environment
    headers = dict(entry.pop("http_headers", None) or entry.pop("headers", None) or {})
    for header, name in (raw.get("env_http_headers") or {}).items():
        headers[header] = f"${{env:{name}}}"
        found.variables.setdefault(str(name), "")
    if token := raw.get("bearer_token_env_var"):
        headers["Authorization"] = f"Bearer ${{env:{token}}}"
        found.variables.setdefault(str(token), "")
    if headers:
        entry["headers"] = headers
    entry.pop("timeout", None)
    for key, ours in (("startup_timeout_sec", "connect_timeout"), ("tool_timeout_sec", "call_timeout")):
        if isinstance(raw.get(key), int | float):
            entry[ours] = raw[key]


def _complaint(item: Any) -> str:
    key = ".".join(str(part) for part in item["loc"])
    message = str(item["msg"]).removeprefix("Value error, ")
    return f"{key}: {message}" if key else message


def _expanded(value: Any, origin: EntryOrigin, found: Translation) -> Any:
    match value:
        case str():
            return _text(value, origin, found)
        case dict():
            return {key: _expanded(item, origin, found) for key, item in value.items()}
        case list():
            return [_expanded(item, origin, found) for item in value]
        case _:
            return value


def _text(text: str, origin: EntryOrigin, found: Translation) -> str:
    """`text` with the client's variables in the spelling of the gateway."""
    match origin.client.variables:
        case Variables.NONE:
            # Codex names variables in members of their own, which are in our spelling already.
            return text if origin.client.file_format is FileFormat.TOML else _OURS.sub(r"$$\1", text)
        case Variables.BRACED:
            pattern = _BRACED
        case Variables.DOLLAR:
            pattern = _DOLLAR
        case Variables.PREFIXED:
            return _PREFIXED.sub(lambda match: _prefixed(match, origin, found), text)
    parts: list[str] = []
    end = 0
    for match in pattern.finditer(text):
        parts += [_OURS.sub(r"$$\1", text[end : match.start()]), _plain(match, origin, found)]
        end = match.end()
    return "".join([*parts, _OURS.sub(r"$$\1", text[end:])])


def _plain(match: re.Match[str], origin: EntryOrigin, found: Translation) -> str:
    name = match[1] or match[match.re.groups]
    if name == "CLAUDE_PROJECT_DIR":
        return str(origin.surroundings.project)
    if name == "HOME":
        return str(origin.surroundings.home)
    default = match[2]
    if default is not None:
        return f"${{env:{name}:-{default}}}"
    found.variables.setdefault(name, "")
    return f"${{env:{name}}}"


def _prefixed(match: re.Match[str], origin: EntryOrigin, found: Translation) -> str:
    kind, name, word = match.groups()
    match kind, word:
        case "env", _:
            if ":-" not in name:
                found.variables.setdefault(name, "")
            return f"${{env:{name}}}"
        case "file", _:
            return match[0]
        case "input", _:
            variable = re.sub(r"\W+", "_", name).strip("_").upper() or "INPUT"
            found.variables.setdefault(variable, origin.inputs.get(name, ""))
            found.notes.append(f"asked you for {name!r}; the gateway reads the variable {variable} instead")
            return f"${{env:{variable}}}"
        case _, "userHome":
            return str(origin.surroundings.home)
        case _, "workspaceFolder" | "workspaceRoot" if origin.scope is not Scope.USER:
            return str(origin.surroundings.project)
        case _, "workspaceFolderBasename" if origin.scope is not Scope.USER:
            return origin.surroundings.project.name
        case _, "workspaceFolder" | "workspaceRoot" | "cwd":
            note = f"{match[0]} is the folder that the client starts the gateway in, which may be none of its projects"
            found.notes += [note] if note not in found.notes else []
            return "${cwd}" if word == "cwd" else "${workspaceFolder}"
        case _, "pathSeparator" | "/":
            return "\\" if origin.surroundings.system == "windows" else "/"
        case _:
            found.problems.append(f"{match[0]} means something in the client only; write the value into config.yaml")
            return match[0]


def _settle_folder(definition: dict[str, Any], origin: EntryOrigin, found: Translation) -> None:
    """Give a definition with relative paths the folder they start from: a client runs servers in its project."""
    folder = origin.surroundings.project
    given = definition.get("cwd")
    if given and not _is_absolute(given) and origin.scope is not Scope.USER:
        definition["cwd"] = str(folder / given)
    elif not given and "command" in definition and any(_relative(definition, folder)):
        if origin.scope is Scope.USER:
            found.notes.append("has relative paths, which start wherever the client does; add `cwd`")
        else:
            definition["cwd"] = str(folder)


def _relative(definition: Mapping[str, Any], folder: Path) -> Iterator[bool]:
    for text in (definition["command"], *definition.get("args", ()), definition.get("env_file") or ""):
        is_path = text in (".", "..") or text.startswith(("./", "../", ".\\", "..\\"))
        looks_like_one = "/" in text and "://" not in text and not text.startswith(("-", "@", "~", "$"))
        yield is_path or (looks_like_one and not _is_absolute(text) and (folder / text).exists())


def _is_absolute(text: str) -> bool:
    return text.startswith(("~", "${")) or PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute()


_SECTIONS = ("env", "headers")


def same_server(known: Mapping[str, Any], entry: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Whether both start the same program or reach the same URL, with the same variables and headers.

    References count as what they stand for, so that an entry with a key written out equals the one imported from it.
    """
    return covers(known, entry, environ) and all(
        _keys(known, section) == _keys(entry, section) for section in _SECTIONS
    )


def covers(known: Mapping[str, Any], entry: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Whether `known` is `entry`, perhaps with more variables or headers."""
    for key in ("command", "args", "url"):
        if _resolved(known.get(key), environ) != _resolved(entry.get(key), environ):
            return False
    for section in _SECTIONS:
        ours, theirs = known.get(section) or {}, entry.get(section) or {}
        if any(
            name not in ours
            or not (_resolved(ours[name], environ) == _resolved(value, environ) or is_placeholder(str(value)))
            for name, value in theirs.items()
        ):
            return False
    return all(not known.get(key) or not entry.get(key) or known[key] == entry[key] for key in ("cwd", "env_file"))


def united(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """One definition with what either of two equal ones says; it is enabled where one of them is."""
    merged = {**second, **first}
    for key in _SECTIONS:
        if key in first or key in second:
            merged[key] = {**second.get(key, {}), **first.get(key, {})}
    if first.get("enabled", True) or second.get("enabled", True):
        merged.pop("enabled", None)
    return merged


def _keys(definition: Mapping[str, Any], section: str) -> set[str]:
    return set(definition.get(section) or ())


def _resolved(value: Any, environ: Mapping[str, str]) -> Any:
    match value:
        case str():
            try:
                return resolve(value, environ)
            except SecretError:
                return value
        case list() | tuple():
            return [_resolved(item, environ) for item in value]
        case None:
            return []
        case _:
            return value
