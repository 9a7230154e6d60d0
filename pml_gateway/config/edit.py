"""A YAML text and new values become the same text with only those values changed.

The nodes of the parsed text say where a value stands; only those characters are replaced, so comments, order, quotes,
alignment and line endings of everything else stay byte for byte. The result is parsed again and must say what was
asked for and nothing else; where it does not (aliases, merge keys), the edit is refused and left to a person.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from pml_gateway.config.document import compose, parse
from pml_gateway.config.layers import KeyPath, dotted
from pml_gateway.config.paths import CONFIG_NAME
from pml_gateway.config.presets import Preset
from pml_gateway.config.problems import Problem, configuration_error
from pml_gateway.errors import ConfigurationError

INDENT = 2

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*\Z")
_RESERVED = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf"})
_COLON = re.compile(r"\s*:")
_ALIAS = re.compile(r"\s*:\s*(\*[^\s,\]}]+)")
_COMMENT_GAP = re.compile(r" {2,}(?=#)")


def apply_preset(text: str, preset: Preset, path: Path = Path(CONFIG_NAME)) -> str:
    """`text` with the exposure keys of `preset`; everything else stays as it is."""
    return set_values(text, preset.values, path)


def set_values(text: str, values: Mapping[str, Any], path: Path = Path(CONFIG_NAME)) -> str:
    """`text` with the nested `values` laid over what it says.

    Raises:
        ConfigurationError: the text is broken YAML, or a person has to make the change.
    """
    before = parse(text, "user", path).values
    if _overlaid(before, values) == before:
        return text
    if text and not text.endswith("\n"):
        # A text file ends its last line; a block scalar there (`|`) then has its newline before and after the edit.
        text += "\r\n" if "\r\n" in text else "\n"
    expected = _overlaid(parse(text, "user", path).values, values)
    changed = _Edits(text, path).applied(values)
    try:
        after = parse(changed, "user", path).values
    except ConfigurationError:
        after = None
    if after != expected:
        raise configuration_error(
            [Problem(str(path), "", f"cannot be edited safely; write by hand:\n{_block(values, 0)}")]
        )
    return changed


def scalar(value: Any, quote: str = "") -> str:
    """A scalar or list in YAML, on one line."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str() if quote == '"' or not (_PLAIN.match(value) and value.lower() not in _RESERVED):
            return json.dumps(value, ensure_ascii=False)
        case str():
            return f"'{value}'" if quote == "'" else value
        case Mapping():
            return "{" + ", ".join(f"{scalar(key, quote)}: {scalar(item, quote)}" for key, item in value.items()) + "}"
        case float() if value.is_integer():
            return str(int(value))
        case list() | tuple():
            return "[" + ", ".join(scalar(item, quote) for item in value) + "]"
        case _:
            return str(value)


def _overlaid(before: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(before) if isinstance(before, dict) else {}
    for key, value in values.items():
        merged[key] = _overlaid(merged.get(key), value) if isinstance(value, Mapping) else _plain(value)
    return merged


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _block(values: Mapping[str, Any], indent: int, eol: str = "\n") -> str:
    lines = []
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            lines.append(f"{' ' * indent}{scalar(key)}:{eol}{_block(value, indent + INDENT, eol)}")
        else:
            lines.append(f"{' ' * indent}{scalar(key)}: {scalar(value)}{eol}")
    return "".join(lines)


@dataclass(slots=True)
class _Edits:
    """Collects replacements in one text."""

    text: str
    path: Path
    eol: str = "\n"
    splices: list[tuple[int, int, str]] = field(default_factory=list)

    def applied(self, values: Mapping[str, Any]) -> str:
        """The text with `values` laid over it."""
        self.eol = "\r\n" if "\r\n" in self.text else "\n"
        root = compose(self.text, self.path)
        if isinstance(root, MappingNode):
            self._mapping(root, values, ())
        else:
            self._append(values)
        text = self.text
        # From the end; at one place the inner section, found first, comes before what follows it.
        order = sorted(range(len(self.splices)), key=lambda index: (self.splices[index][0], index), reverse=True)
        for start, end, replacement in (self.splices[index] for index in order):
            text = text[:start] + replacement + text[end:]
        return text

    def _append(self, values: Mapping[str, Any]) -> None:
        end = len(self.text)
        gap = self.eol if self.text.strip() else ""
        self.splices.append((end, end, gap + _block(values, 0, self.eol)))

    def _mapping(self, node: MappingNode, values: Mapping[str, Any], at: KeyPath) -> None:
        members = {str(key.value): (key, value) for key, value in node.value if isinstance(key, ScalarNode)}
        missing: dict[str, Any] = {}
        for name, value in values.items():
            if name not in members:
                missing[name] = value
            elif isinstance(value, Mapping) and value:
                self._section(*members[name], value, (*at, name), bool(node.flow_style))
            else:
                self._scalar(*members[name], value)
        if missing and not at and not node.flow_style:
            self._append(missing)
        elif missing:
            self._insert(node, missing)

    def _section(self, key: ScalarNode, value: Node, wanted: Mapping[str, Any], at: KeyPath, is_in_flow: bool) -> None:
        if _is_alias(key, value):
            self._refuse(key, at, "is a YAML alias, which other keys share; write the section out, then try again")
        if isinstance(value, MappingNode):
            self._mapping(value, wanted, at)
        elif isinstance(value, ScalarNode) and str(value.tag).endswith(":null"):
            start, end = self._span(key, value)
            if start < end:
                self.splices.append((start, end, scalar(wanted, _quote(key))))
            elif is_in_flow:
                self.splices.append((start, end, f" {scalar(wanted, _quote(key))}"))
            else:
                self._insert_lines(start, _block(wanted, key.start_mark.column + INDENT, self.eol))
        else:
            self._refuse(key, at, "should be a section of keys and values")

    def _scalar(self, key: ScalarNode, value: Node, wanted: Any) -> None:
        start, end = self._span(key, value)
        written = self.text[start:end]
        replacement = scalar(wanted, value.style if isinstance(value, ScalarNode) and value.style else "")
        if written.endswith("\n"):
            replacement += self.eol
        elif not written:
            replacement = f" {replacement}"
        gap = _COMMENT_GAP.match(self.text, end)
        if gap is not None:
            replacement += " " * max(2, len(written) + len(gap[0]) - len(replacement))
            end = gap.end()
        self.splices.append((start, end, replacement))

    def _insert(self, node: MappingNode, missing: Mapping[str, Any]) -> None:
        if node.flow_style:
            inside = scalar(missing, _quote(node.value[0][0]) if node.value else "")[1:-1]
            if node.value:
                _, position = self._span(*node.value[-1])
                self.splices.append((position, position, f", {inside}"))
            else:
                position = self.text.index("{", node.start_mark.index) + 1
                self.splices.append((position, position, inside))
            return
        column = node.value[0][0].start_mark.column
        self._insert_lines(self._end(node), _block(missing, column, self.eol))

    def _insert_lines(self, position: int, lines: str) -> None:
        """Put `lines` below the line of `position`."""
        if position and self.text[position - 1] == "\n":
            self.splices.append((position, position, lines))
            return
        newline = self.text.find("\n", position)
        if newline < 0:
            self.splices.append((len(self.text), len(self.text), self.eol + lines))
        else:
            self.splices.append((newline + 1, newline + 1, lines))

    def _span(self, key: Node, value: Node) -> tuple[int, int]:
        """Where the value of `key` is written: an alias where the alias stands, an empty value behind the colon."""
        start, end = value.start_mark.index, value.end_mark.index
        if _is_alias(key, value) and (alias := _ALIAS.match(self.text, key.end_mark.index)):
            return alias.span(1)
        if start == end and (colon := _COLON.match(self.text, key.end_mark.index)):
            return colon.end(), colon.end()
        return int(start), int(end)

    def _end(self, node: Node) -> int:
        """Where the last value of `node` ends; block nodes themselves end only after the comments that follow."""
        while isinstance(node, MappingNode | SequenceNode) and not node.flow_style:
            if isinstance(node, MappingNode):
                key, last = node.value[-1]
                if _is_alias(key, last) or last.start_mark.index == last.end_mark.index:
                    return self._span(key, last)[1]
            else:
                last = node.value[-1]
                if last.start_mark.index < node.start_mark.index or last.start_mark.index == last.end_mark.index:
                    return self._end_of_lines(node.end_mark.index)
            node = last
        return int(node.end_mark.index)

    def _end_of_lines(self, position: int) -> int:
        """The end of the last line before `position` that holds more than a comment.

        An alias or an empty item at the end of a list has no position of its own.
        """
        lines = self.text[:position].splitlines(keepends=True)
        while lines and (not lines[-1].strip() or lines[-1].lstrip().startswith("#")):
            lines.pop()
        return len("".join(lines).rstrip("\r\n"))

    def _refuse(self, node: Node, at: KeyPath, reason: str) -> None:
        raise configuration_error([Problem(f"{self.path}:{node.start_mark.line + 1}", dotted(at), reason)])


def _is_alias(key: Node, value: Node) -> bool:
    """Whether `value` was written elsewhere: an alias yields the node of its anchor, which stands before the key."""
    return value is not key and bool(value.start_mark.index < key.start_mark.index)


def _quote(key: Node) -> str:
    return '"' if isinstance(key, ScalarNode) and key.style == '"' else ""
