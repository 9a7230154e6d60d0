"""Layers of configuration: nested values that remember their origin, merged so that the later one wins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

KeyPath = tuple[str | int, ...]
"""Keys and list positions from the root: `("servers", "github", "args", 0)`."""

Source = Literal["default", "user", "project", "environment", "command line", "preset"]

SERVER_IDENTITY = frozenset({"command", "url", "serverUrl", "httpUrl"})
"""A later file that gives one of these describes a server anew; without them it only refines the earlier entry."""

PROJECT_UNIONS: tuple[tuple[str, ...], ...] = (
    ("gateway", "blacklisted_tools"),
    ("clients", "*", "deny"),
    ("sets", "*", "exclude"),
    ("rules",),
)
"""Denials, and rules, that a project file can lengthen but never lift: its own rules come after the others."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Source of a value, and its place: `file:line`, a variable name or an option."""

    source: Source
    location: str


@dataclass(frozen=True, slots=True)
class Layer:
    """The values of one source; `origins` has an entry for every node of `values`."""

    source: Source
    values: dict[str, Any]
    origins: dict[KeyPath, Origin]

    def origin(self, path: KeyPath) -> Origin | None:
        """Return the origin of `path`, or of its closest parent."""
        for length in range(len(path), 0, -1):
            found = self.origins.get(path[:length])
            if found is not None:
                return found
        return None


def layer_of(source: Source, values: Mapping[str, Any], location: str) -> Layer:
    """Return a layer whose every value has the same origin."""
    origin = Origin(source, location)
    tree = dict(values)
    return Layer(source, tree, {path: origin for path, _ in nodes(tree)})


def nodes(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Every node below `value`, sections before their members."""
    if path:
        yield path, value
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from nodes(item, (*path, key))
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            yield from nodes(item, (*path, position))


def leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Scalars, lists and empty mappings; a list is one leaf."""
    if isinstance(value, Mapping) and (value or not path):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    else:
        yield path, value


def merge(layers: Iterable[Layer]) -> Layer:
    """Lay `layers` over each other, later ones winning; sections merge, lists and scalars are replaced."""
    merged = Layer("default", {}, {})
    for layer in layers:
        _lay(merged, layer, merged.values, layer.values, ())
    return merged


def _lay(merged: Layer, layer: Layer, target: dict[str, Any], values: Mapping[str, Any], at: KeyPath) -> None:
    for key, value in values.items():
        path = (*at, key)
        present = target.get(key)
        if isinstance(present, dict) and isinstance(value, Mapping) and not _replaces(layer.source, path, value):
            _lay(merged, layer, present, value, path)
        elif isinstance(present, list) and isinstance(value, list | tuple) and _unites(layer.source, path):
            _unite(merged, layer, present, value, path)
        else:
            for known in [known for known in merged.origins if known[: len(path)] == path]:
                del merged.origins[known]
            target[key] = _copy(value)
            merged.origins.update(
                {known: origin for known, origin in layer.origins.items() if known[: len(path)] == path}
            )


def _replaces(source: Source, path: KeyPath, value: Mapping[str, Any]) -> bool:
    match path:
        case ("workflows", _):
            return True
        case ("servers", _):
            return source in ("user", "project") and not SERVER_IDENTITY.isdisjoint(value)
        case _:
            return False


def _unites(source: Source, path: KeyPath) -> bool:
    return source == "project" and any(
        len(path) == len(union) and all(part in ("*", key) for part, key in zip(union, path, strict=True))
        for union in PROJECT_UNIONS
    )


def _unite(merged: Layer, layer: Layer, present: list[Any], value: Iterable[Any], path: KeyPath) -> None:
    added = [item for item in value if item not in present]
    if not added:
        return
    present.extend(added)
    before, after = merged.origin(path), layer.origin(path)
    if before is not None and after is not None:
        merged.origins[path] = Origin(after.source, f"{before.location}, {after.location}")


def _copy(value: Any) -> Any:
    """Return a tree of plain dicts and lists, so that later layers never write into a source."""
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_copy(item) for item in value]
    return value


def dotted(path: KeyPath) -> str:
    """`servers.github.args[0]`, as messages and origins name a key."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
