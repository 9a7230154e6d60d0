"""The reference of all settings: every key with what it takes, its default and its purpose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from pml_gateway.config.edits.edit import scalar
from pml_gateway.config.problems import is_model
from pml_gateway.config.settings import ByteSize, Settings

ENTRY = "<name>"
"""Stands for the names that the operator gives to servers and clients."""

ITEM = "<n>"
"""Stands for the position of an entry in a list."""

_BOUNDS = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
_WORDS: dict[Any, str] = {bool: "true, false", int: "whole number", float: "number", str: "text", Any: "anything"}
_SIZES = ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"))


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of the configuration."""

    key: str
    takes: str
    default: Any
    is_required: bool
    description: str
    choices: tuple[str, ...] = ()
    """Its values, if there are few."""

    @property
    def shown_default(self) -> str:
        """The default as it is written in a file."""
        if self.is_required:
            return "required"
        if isinstance(self.default, list):
            return f"[{', '.join(map(str, self.default))}]"
        if self.takes == "size" and isinstance(self.default, int):
            return _size(self.default)
        return _written(self.default)


def reference(prefix: str = "") -> list[Setting]:
    """Every key of the configuration that starts with `prefix`, in the order of the tree."""
    return [
        setting for setting in _settings(Settings, ()) if f"{setting.key}.".startswith(f"{prefix}." if prefix else "")
    ]


def setting_of(key: str) -> Setting | None:
    """Return the setting of a dotted key that has the names of servers and clients in it; None if there is none."""
    parts = key.split(".")

    def fits(setting: Setting) -> bool:
        known = setting.key.split(".")
        return len(known) == len(parts) and all(each in (ENTRY, part) for each, part in zip(known, parts, strict=True))

    return next(filter(fits, reference()), None)


def setting_text(value: Any) -> str:
    """Return a value as people write it into a field: the entries of a list in lines."""
    if isinstance(value, str):
        return value
    return "\n".join(map(setting_text, value)) if isinstance(value, list) else scalar(value)


def markdown_reference(settings: list[Setting]) -> str:
    """Return the reference as a Markdown table."""
    rows = (
        f"| `{each.key}` | {_escaped(each.takes)} | `{each.shown_default}` | {_escaped(each.description)} |"
        for each in settings
    )
    return "\n".join(("| setting | takes | default | what it is |", "| --- | --- | --- | --- |", *rows))


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _settings(model: type[BaseModel], at: tuple[str, ...]) -> Iterator[Setting]:
    for name, field in model.model_fields.items():
        path = (*at, name)
        kind, optional = _without_none(field.annotation)
        if is_model(kind) and not optional:
            yield from _settings(kind, path)
        elif is_model(kind):
            yield _setting(path, field, "a section", default=None)
            yield from _settings(kind, path)
        elif get_origin(kind) is dict and is_model(get_args(kind)[1]):
            yield from _settings(get_args(kind)[1], (*path, ENTRY))
        elif get_origin(kind) is tuple and is_model(get_args(kind)[0]):
            yield _setting(path, field, "list of entries", default=_default(field))
            yield from _settings(get_args(kind)[0], (*path, ITEM))
        else:
            choices = (*_choices(kind), "null") if optional and _choices(kind) else _choices(kind)
            yield _setting(path, field, _takes(kind, field), default=_default(field), choices=choices)


def _setting(
    path: tuple[str, ...], field: FieldInfo, takes: str, *, default: Any, choices: tuple[str, ...] = ()
) -> Setting:
    return Setting(".".join(path), takes, default, field.is_required(), field.description or "", choices)


def _choices(kind: Any) -> tuple[str, ...]:
    if kind is bool:
        return ("true", "false")
    if get_origin(kind) is Literal:
        return tuple(map(str, get_args(kind)))
    return tuple(str(each.value) for each in kind) if isinstance(kind, type) and issubclass(kind, Enum) else ()


def _default(field: FieldInfo) -> Any:
    default = field.get_default(call_default_factory=True)
    if default is PydanticUndefined:
        return None
    if isinstance(default, Enum):
        return default.value
    return list(default) if isinstance(default, tuple) else default


def _takes(kind: Any, field: FieldInfo) -> str:
    """Return the permitted values in a few words."""
    if field.metadata and any(item in get_args(ByteSize) for item in field.metadata):
        return "size"
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if choices := _choices(kind):
        return ", ".join(choices)
    if get_origin(kind) is tuple:
        return "list of texts"
    if get_origin(kind) is dict:
        return "names and values"
    bounds = [
        f"{sign} {bound:g}"
        for name, sign in _BOUNDS
        for item in field.metadata
        if (bound := getattr(item, name, None)) is not None
    ]
    return " ".join([_WORDS[kind], " and ".join(bounds)]).strip()


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) is Annotated:
        return _without_none(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        kinds = [each for each in get_args(annotation) if each is not type(None)]
        return kinds[0], True
    return annotation, False


def _size(count: int) -> str:
    factor, unit = next(((factor, unit) for factor, unit in _SIZES if count % factor == 0), (1, "B"))
    return f"{count // factor}{unit}"


def _written(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case dict():
            return "{}"
        case float() if value.is_integer():
            return str(int(value))
        case _:
            return str(value)
