"""A layer as written becomes a layer in the shape of the settings tree: aliases merged, empty sections dropped."""

from __future__ import annotations

from typing import Any

from pml_gateway.config.keys import ALIASES, annotation_at, is_container, names_entries
from pml_gateway.config.layers import KeyPath, Layer, Origin, dotted
from pml_gateway.config.problems import Problem, configuration_error


def shaped(layer: Layer) -> Layer:
    """`layer` with every alias merged into the key that counts, and without keys that hold nothing.

    Raises:
        ConfigurationError: the same server is given under both spellings.
    """
    values = _without_empty(layer.values, ())
    origins = dict(layer.origins)
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
