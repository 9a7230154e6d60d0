"""The models of the settings tree become answers about keys: which exist, what they hold, which one is near."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import AliasChoices, BaseModel

from pml_gateway.config.layers import KeyPath
from pml_gateway.config.settings import Settings

ALIASES: dict[tuple[str, ...], tuple[str, ...]] = {
    ("mcpServers",): ("servers",),
    ("gateway", "hybrid", "blacklisted_tools"): ("gateway", "blacklisted_tools"),
}
"""Other spellings that are accepted and merged into the key that counts."""

DISTANT_LIKENESS = 0.8
"""A misspelt key of another section has to be more alike than one of the same section (0.6, difflib's default)."""


def annotation_at(path: KeyPath) -> Any | None:
    """The type that the settings tree holds at `path`; None where there is no such key."""
    annotation: Any = Settings
    for part in path:
        annotation = _member(annotation, part)
        if annotation is None:
            return None
    return annotation


def _member(annotation: Any, part: str | int) -> Any | None:
    annotation = _without_none(annotation)
    if _is_model(annotation):
        field = annotation.model_fields.get(part)
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
    """Whether the type is a section, a mapping or a list: an empty key (`gateway:`) then means nothing was set."""
    return _is_model(annotation) or get_origin(annotation) in (dict, tuple)


def is_list(path: KeyPath) -> bool:
    """Whether the key holds a list."""
    return get_origin(annotation_at(path)) is tuple


def names_entries(path: KeyPath) -> bool:
    """Whether the keys below `path` are names of the operator's (servers, clients), not keys of the tree."""
    return get_origin(annotation_at(path)) is dict


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, UnionType):
        rest = [item for item in get_args(annotation) if item is not type(None)]
        return rest[0] if len(rest) == 1 else annotation
    return annotation


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def member_keys(path: KeyPath) -> tuple[str, ...]:
    """The keys known directly below `path`."""
    annotation = _without_none(annotation_at(path))
    if annotation is None or not _is_model(annotation):
        return ()
    return tuple(annotation.model_fields)


def nearest_key(path: KeyPath) -> KeyPath | None:
    """The known key closest to `path`: a sibling, the same name in another section, or nothing."""
    section, name = path[:-1], str(path[-1]).lower().replace("-", "_")
    siblings = member_keys(section)
    if name in siblings:
        return (*section, name)
    elsewhere = next((known for known in all_keys() if known[-1] == name), None)
    if elsewhere is not None:
        return elsewhere
    near = difflib.get_close_matches(name, siblings, n=1)
    if near:
        return (*section, near[0])
    names = {str(known[-1]): known for known in reversed(all_keys())}
    far = difflib.get_close_matches(name, names, n=1, cutoff=DISTANT_LIKENESS)
    return names[far[0]] if far else None


@cache
def all_keys() -> tuple[KeyPath, ...]:
    """Every key of the tree that does not depend on the name of a server, client or workflow."""
    return tuple(_walk(Settings, ()))


def _walk(model: type[BaseModel], path: KeyPath) -> Iterator[KeyPath]:
    for name, field in model.model_fields.items():
        yield (*path, name)
        if _is_model(field.annotation):
            yield from _walk(field.annotation, (*path, name))  # type: ignore[arg-type]  # _is_model narrows it
