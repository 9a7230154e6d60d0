"""The keys of the settings tree, and errors about them: file, line, key, value, limit and near miss."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeGuard, TypeVar, Union, get_args, get_origin

from pydantic import AliasChoices, BaseModel, ValidationError

from pml_gateway.config.layers import KeyPath, Layer, Origin, dotted
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.settings import ClientSettings, Settings
from pml_gateway.errors import ConfigurationError, UsageError
from pml_gateway.text import did_you_mean, nearest, suggestion

ALIASES: dict[tuple[str, ...], tuple[str, ...]] = {
    ("mcpServers",): ("servers",),
    ("gateway", "hybrid", "blacklisted_tools"): ("gateway", "blacklisted_tools"),
}
"""Accepted aliases of keys, each with the key that it is merged into."""

ONE_LINE: dict[str, str] = {"storage": "url"}
"""Sections that may be written as one text, each with the key that the text sets."""

GUESSED_KEYS: dict[KeyPath, KeyPath] = {
    (*section, name): ("gateway", "tools_exposure")
    for section in ((), ("gateway",))
    for name in ("mode", "exposure", "preset")
}
"""Keys that do not exist but are often guessed, each with the key to use."""

DISTANT_LIKENESS = 0.8
"""Minimum likeness of a key in another section to be suggested; higher than for keys of the same section."""

MAX_VALUE_CHARACTERS = 60

MAX_LISTED_PROBLEMS = 30
"""Maximum number of problems in a message: a screenful; `details` has them all."""

SECRET_SECTIONS = frozenset({"servers", "clients", "workflows", "storage"})
"""Sections whose texts may be credentials; their values never enter a message."""

EntryT = TypeVar("EntryT")

_QUOTED = re.compile(r"'([^']*)'")

_SHOULD_BE = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "finite_number": "a number with digits, as 10",
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("string_type", "path_type"), "a text"),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "a mapping of keys to values"),
    **dict.fromkeys(("tuple_type", "list_type", "set_type", "frozen_set_type"), "a list"),
    "string_too_short": "at least {min_length} characters long",
    "string_too_long": "at most {max_length} characters long",
    "string_pattern_mismatch": "written like {pattern}",
}
"""Messages by pydantic's type of error; its own messages speak of tuples, instances and parsing."""


def annotation_at(path: KeyPath) -> Any | None:
    """Return the type of the setting at `path`; None if there is no such key."""
    annotation: Any = Settings
    for part in path:
        annotation = _member(annotation, part)
        if annotation is None:
            return None
    return annotation


def _member(annotation: Any, part: str | int) -> Any | None:
    annotation = without_none(annotation)
    if is_model(annotation):
        field = annotation.model_fields.get(str(part))
        if field is None:
            field = next(
                (
                    candidate
                    for candidate in annotation.model_fields.values()
                    if isinstance(candidate.validation_alias, AliasChoices)
                    and part in candidate.validation_alias.choices
                ),
                None,
            )
        return None if field is None else field.annotation
    if get_origin(annotation) is dict:
        return get_args(annotation)[1]
    if get_origin(annotation) is tuple and isinstance(part, int):
        return get_args(annotation)[0]
    return Any if annotation is Any else None


def is_container(annotation: Any) -> bool:
    """Return True if the type is a section, mapping or list, for which an empty key (`gateway:`) sets nothing."""
    return is_model(annotation) or get_origin(annotation) in (dict, tuple)


def is_list(path: KeyPath) -> bool:
    """Return True if the key holds a list."""
    return get_origin(without_none(annotation_at(path))) is tuple


def names_entries(path: KeyPath) -> bool:
    """Return True if the keys below `path` are the operator's names (servers, clients), not settings."""
    return get_origin(annotation_at(path)) is dict


def without_none(annotation: Any) -> Any:
    """Return the type of a setting that may also be null."""
    if get_origin(annotation) in (Union, UnionType):
        rest = [item for item in get_args(annotation) if item is not type(None)]
        return rest[0] if len(rest) == 1 else annotation
    return annotation


def is_model(annotation: Any) -> TypeGuard[type[BaseModel]]:
    """Return True if the type is a section."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def member_keys(path: KeyPath) -> tuple[str, ...]:
    """Return the keys known directly below `path`."""
    annotation = without_none(annotation_at(path))
    if annotation is None or not is_model(annotation):
        return ()
    return tuple(annotation.model_fields)


def nearest_key(path: KeyPath) -> KeyPath | None:
    """Return the known key closest to `path`: a sibling, the same name in another section, or nothing."""
    section, name = path[:-1], str(path[-1]).lower().replace("-", "_")
    if (*section, name) in GUESSED_KEYS:
        return GUESSED_KEYS[*section, name]
    siblings = member_keys(section)
    if name in siblings:
        return (*section, name)
    elsewhere = next((known for known in all_keys() if known[-1] == name), None)
    if elsewhere is not None:
        return elsewhere
    near = nearest(name, siblings)
    if near:
        return (*section, near[0])
    names = {str(known[-1]): known for known in reversed(all_keys())}
    far = nearest(name, names, likeness=DISTANT_LIKENESS)
    return names[far[0]] if far else None


@cache
def all_keys() -> tuple[KeyPath, ...]:
    """Return all keys that do not depend on the name of a server, client or workflow."""
    return tuple(_walk(Settings, ()))


def _walk(model: type[BaseModel], path: KeyPath) -> Iterator[KeyPath]:
    for name, field in model.model_fields.items():
        yield (*path, name)
        if is_model(field.annotation):
            yield from _walk(field.annotation, (*path, name))


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to correct: where it is, which key, and what is wrong with it."""

    location: str
    key: str
    message: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.location, self.key, self.message) if part)


def configuration_error(problems: Sequence[Problem]) -> ConfigurationError:
    """Return one error for all `problems`; `details["problems"]` has them as objects."""
    texts = [str(problem) for problem in problems[:MAX_LISTED_PROBLEMS]]
    if len(problems) > MAX_LISTED_PROBLEMS:
        texts.append(f"and {len(problems) - MAX_LISTED_PROBLEMS} more")
    message = texts[0] if len(texts) == 1 else "\n  ".join((f"{len(problems)} problems in the configuration:", *texts))
    records = [{"location": item.location, "key": item.key, "message": item.message} for item in problems]
    return ConfigurationError(message, details={"problems": records})


def validation_problems(error: ValidationError, layer: Layer) -> list[Problem]:
    """Return the errors of pydantic in the order of the files, in the words of the configuration."""
    problems = []
    for item in sorted(error.errors(include_url=False), key=lambda item: _line(layer.origin(item["loc"]))):
        path = tuple(part for part in item["loc"] if part != "[key]")
        origin = layer.origin(path)
        problems.append(Problem(origin.location if origin else "", dotted(path), _message(item, path)))
    return problems


def _line(origin: Origin | None) -> tuple[str, int]:
    file, _, line = (origin.location if origin else "").rpartition(":")
    return (file, int(line)) if line.isdecimal() else (file, 0)


def _message(item: Any, path: KeyPath) -> str:
    return unknown_key(path) if item["type"] == "extra_forbidden" else plain_message(item, path)


def plain_message(item: Any, path: KeyPath = ("servers",)) -> str:
    """Return what an error of pydantic says, in the words of the configuration; `path` decides what may be shown."""
    value, context = shown(item["input"], path), item.get("ctx", {})
    match item["type"]:
        case "extra_forbidden":
            return "unknown key"
        case "missing":
            return "is required"
        case "value_error":
            return str(item["msg"]).removeprefix("Value error, ")
        case "literal_error" | "enum":
            expected = str(context["expected"])
            return f"{value} should be {expected}{suggestion(item['input'], _QUOTED.findall(expected))}"
        case "too_short" | "too_long" as kind:
            limit = f"at least {context['min_length']}" if kind == "too_short" else f"at most {context['max_length']}"
            return f"{value} should have {limit} entries"
        case known if known in _SHOULD_BE:
            return f"{value} should be {_SHOULD_BE[known].format(**context)}"
        case _:
            text = str(item["msg"]).removeprefix("Input ")
            return f"{value} {text[:1].lower()}{text[1:]}"


def unknown_key(path: KeyPath) -> str:
    """Return the message `unknown key`, with the nearest known key if one is similar."""
    meant = nearest_key(path)
    if meant is not None:
        return f"unknown key; {did_you_mean([str(meant[-1]) if meant[:-1] == path[:-1] else dotted(meant)])}"
    known = member_keys(path[:-1])
    return f"unknown key; known here: {', '.join(known)}" if known else "unknown key"


def shown(value: object, path: KeyPath) -> str:
    """Return a value for display in a message: shortened, and without texts that could be credentials."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case str() if path and path[0] not in SECRET_SECTIONS:
            text = repr(value)
            return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[:MAX_VALUE_CHARACTERS]}..."
        case str():
            return "this text"
        case list() | tuple():
            return "a list"
        case dict():
            return "a mapping"
        case _:
            return "this value"


def without_aliases(layer: Layer) -> Layer:
    """Return a layer with aliases merged into their keys, sections of one line written out, and no empty keys.

    Raises:
        ConfigurationError: the same server is given under both spellings.
    """
    values = _without_empty(layer.values, ())
    origins = dict(layer.origins)
    for section, key in ONE_LINE.items():
        if isinstance(values.get(section), str):
            values[section] = {key: values[section]}
            origins[section, key] = origins[section,]
    problems: list[Problem] = []
    for alias, path in ALIASES.items():
        moved = _take(values, alias)
        if moved is not None:
            problems += _merge(values, origins, moved, alias, path)
    if problems:
        raise configuration_error(problems)
    return Layer(layer.source, values, origins)


def _without_empty(values: dict[str, Any], at: tuple[str, ...]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in values.items():
        path = (*at, key)
        if value is None and is_container(annotation_at(ALIASES.get(path, path))) and not names_entries(at):
            continue
        kept[key] = _without_empty(value, path) if isinstance(value, dict) else value
    return kept


def _take(values: dict[str, Any], path: tuple[str, ...]) -> Any:
    """Remove and return what is at `path`, if anything is."""
    section: Any = values
    for key in path[:-1]:
        section = section.get(key) if isinstance(section, dict) else None
    return section.pop(path[-1], None) if isinstance(section, dict) else None


def _merge(
    values: dict[str, Any], origins: dict[KeyPath, Origin], moved: Any, alias: tuple[str, ...], path: tuple[str, ...]
) -> list[Problem]:
    section = values
    for key in path[:-1]:
        section = section[key]
    present = section.get(path[-1])
    for known, origin in [(known, origin) for known, origin in origins.items() if known[: len(alias)] == alias]:
        del origins[known]
        target = (*path, *known[len(alias) :])
        if isinstance(present, dict) or target not in origins:
            origins.setdefault(target, origin)
        elif target == path:
            origins[path] = Origin(origin.source, f"{origins[path].location}, {origin.location}")
    match present, moved:
        case None, _:
            section[path[-1]] = moved
        case list(), list():
            section[path[-1]] = [*present, *(item for item in moved if item not in present)]
        case dict(), dict():
            section[path[-1]] = {**moved, **present}
            return [
                Problem("", dotted((*path, name)), f"is given under both `{dotted(path)}` and `{dotted(alias)}`")
                for name in moved
                if name in present
            ]
        case _:
            return [Problem(origins[path].location, dotted(path), f"and `{dotted(alias)}` should both be lists")]
    return []


def client_entry(settings: Settings, name: str) -> ClientSettings:
    """Return the client of this name.

    Raises:
        UsageError: none is configured.
    """
    return _entry("client", settings.clients, name, "none; write `clients: {NAME: {}}` into the configuration")


def server_entry(settings: Settings, name: str) -> UpstreamDefinition:
    """Return the server of this name.

    Raises:
        UsageError: none is configured.
    """
    return _entry("server", settings.servers, name, "none; pml add NAME -- COMMAND adds one")


def _entry(kind: str, entries: Mapping[str, EntryT], name: str, none: str) -> EntryT:
    if name not in entries:
        raise UsageError(
            f"no {kind} {name!r} is configured{suggestion(name, entries)}",
            hint=f"known are {', '.join(entries) or none}",
        )
    return entries[name]
