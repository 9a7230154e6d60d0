"""YAML files of the configuration, read as layers in which every value knows its line."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from pml_gateway.config.layers import KeyPath, Layer, Origin, Source, dotted
from pml_gateway.config.problems import Problem, configuration_error
from pml_gateway.errors import ConfigurationError
from pml_gateway.regular_files import RefusedFileError, read_regular

MAX_FILE_BYTES = 1024 * 1024
"""Hundreds of servers fit in a tenth of this."""

MAX_NODES = 50_000
"""Bounds what nested aliases can expand to."""

MAX_DEPTH = 50

_VERBATIM = frozenset({"args", "env", "environment", "headers", "http_headers"})
"""Members of a server entry that are text for another program: `1.10` must not become `1.1`."""

_TAG = "tag:yaml.org,2002:"


class _Yaml(YAML):
    """YAML without plug-ins, for which each reader would look through the installed package."""

    def official_plug_ins(self) -> list[Any]:
        """None."""
        return []


def read_bytes(path: Path, *, is_own: bool = False, within: Path | None = None) -> bytes:
    """Return the content of a regular file of bounded size; `is_own` and `within` are those of `read_regular`.

    Raises:
        ConfigurationError: the file cannot be read, is no regular file, or is too large.
    """
    try:
        content = read_regular(path, MAX_FILE_BYTES + 1, is_own=is_own, within=within)
    except RefusedFileError as exc:
        hint = "use a regular YAML file of your own in its place"
        raise ConfigurationError(f"{path}: {exc.strerror}; not read", hint=hint) from exc
    except OSError as exc:
        raise ConfigurationError(f"{path} cannot be read: {exc.strerror}", hint="check the path and its mode") from exc
    if len(content) > MAX_FILE_BYTES:
        raise ConfigurationError(f"{path} is larger than {MAX_FILE_BYTES} bytes", hint="name a configuration file")
    return content


def is_there(path: Path) -> bool:
    """Return True if `path` exists; False also if the system does not permit a look."""
    try:
        return path.exists()
    except OSError:
        return False


def parse(content: bytes | str, source: Source, path: Path) -> Layer:
    """Return the values in `content`, each with its `file:line`.

    Raises:
        ConfigurationError: broken YAML with its line and column; every duplicate key; anything but a mapping.
    """
    root = compose(content, path)
    reader = _Reader(source, path)
    if root is None:
        return Layer(source, {}, {})
    if not isinstance(root, MappingNode):
        if isinstance(root, ScalarNode) and root.tag == f"{_TAG}null":
            return Layer(source, {}, {})
        raise configuration_error([Problem(f"{path}:1", "", "the file should hold keys and values, as `gateway:`")])
    values = reader.mapping(root, (), ())
    if reader.problems:
        raise configuration_error(reader.problems)
    return Layer(source, values, reader.origins)


@lru_cache(16)
def compose(content: bytes | str, path: Path) -> Node | None:
    """Return the YAML nodes of `content`, with their positions in it.

    One process reads the same file for every client.
    """
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
        root: Node | None = _Yaml(typ="safe", pure=True).compose(text)
    except UnicodeDecodeError as exc:
        raise ConfigurationError(f"{path} is not UTF-8 text (byte {exc.start})", hint="save it as UTF-8") from exc
    except MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        location = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        reason = " ".join(part for part in (exc.context, exc.problem) if part)
        raise configuration_error([Problem(location, "", f"broken YAML: {reason}")]) from exc
    except YAMLError as exc:
        reason = str(exc).splitlines()[0]
        raise configuration_error([Problem(str(path), "", f"broken YAML: {reason}")]) from exc
    except RecursionError:
        raise configuration_error([Problem(str(path), "", "is nested too deeply")]) from None
    return root


class _Reader:
    """Walks the nodes of one file, collecting origins and problems."""

    def __init__(self, source: Source, path: Path) -> None:
        self.origins: dict[KeyPath, Origin] = {}
        self.problems: list[Problem] = []
        self._source = source
        self._path = path
        self._count = 0
        self._constructor = _Yaml(typ="safe", pure=True).constructor

    def mapping(self, node: MappingNode, path: KeyPath, inside: tuple[Node, ...]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node, is_merged in _members(node):
            if not isinstance(key_node, ScalarNode):
                self._complain(key_node, path, "a key should be plain text")
                continue
            key = str(key_node.value)
            if key in lines:
                if not is_merged:
                    self._complain(key_node, (*path, key), f"duplicate key; first set in line {lines[key]}")
                continue
            lines[key] = key_node.start_mark.line + 1
            self.origins[(*path, key)] = Origin(self._source, self._location(key_node))
            values[key] = self._value(value_node, (*path, key), (*inside, node))
        return values

    def _value(self, node: Node, path: KeyPath, inside: tuple[Node, ...]) -> Any:
        self._count += 1
        if self._count > MAX_NODES or len(inside) > MAX_DEPTH or any(node is outer for outer in inside):
            if self._count <= MAX_NODES:
                self._complain(node, path, f"is nested more than {MAX_DEPTH} levels deep")
            elif self._count == MAX_NODES + 1:
                self._complain(node, path, f"the file expands to more than {MAX_NODES} values")
            return None
        match node:
            case MappingNode():
                return self.mapping(node, path, inside)
            case SequenceNode():
                return self._sequence(node, path, inside)
            case _:
                return self._scalar(node, path)

    def _sequence(self, node: SequenceNode, path: KeyPath, inside: tuple[Node, ...]) -> list[Any]:
        values = []
        for position, item in enumerate(node.value):
            self.origins[(*path, position)] = Origin(self._source, self._location(item))
            values.append(self._value(item, (*path, position), (*inside, node)))
        return values

    def _scalar(self, node: Node, path: KeyPath) -> Any:
        kind = str(node.tag).removeprefix(_TAG)
        is_verbatim = len(path) > 3 and path[0] in ("servers", "mcpServers") and path[2] in _VERBATIM
        if kind in ("str", "timestamp") or (is_verbatim and kind in ("int", "float", "bool")):
            return node.value
        if kind not in ("null", "bool", "int", "float"):
            self._complain(node, path, f"the tag {node.tag} means nothing here; remove it")
            return None
        try:
            return self._constructor.construct_object(node)
        except (ValueError, YAMLError):
            self._complain(node, path, f"{node.value!r} is no {kind}")
            return None

    def _location(self, node: Node) -> str:
        return f"{self._path}:{node.start_mark.line + 1}"

    def _complain(self, node: Node, path: KeyPath, message: str) -> None:
        self.problems.append(Problem(self._location(node), dotted(path), message))


def _members(node: MappingNode) -> Iterator[tuple[Node, Node, bool]]:
    """Yield the members of a mapping, its own first, then those of `<<:` merges; the flag tells which."""
    pending: list[Node] = [node]
    seen: list[Node] = []
    while pending:
        current = pending.pop(0)
        if any(current is known for known in seen) or not isinstance(current, MappingNode):
            continue
        seen.append(current)
        merges: list[Node] = []
        for key, value in current.value:
            if key.tag == f"{_TAG}merge":
                merges.extend(value.value if isinstance(value, SequenceNode) else [value])
            else:
                yield key, value, current is not node
        pending = [*merges, *pending]
