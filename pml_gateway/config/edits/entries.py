"""Entries of `servers:` in a configuration file: taken out, renamed, renamed in rules; all else stays as written.

As with `edit.py`, only the characters concerned are replaced, and the result must say what was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from pml_gateway.config.document import compose, parse
from pml_gateway.config.edits.edit import scalar, value_end
from pml_gateway.config.layers import KeyPath, dotted
from pml_gateway.config.problems import Problem, configuration_error
from pml_gateway.errors import ConfigurationError

SECTIONS = ("servers", "mcpServers")
"""The section of servers, and how clients call it."""


def section_of(text: str, path: Path, name: str = "") -> str:
    """Return the key under which a configuration file has its servers, or this one of them: a file can have both."""
    values = parse(text, "user", path).values
    there = [each for each in SECTIONS if each in values]
    return next((each for each in there if name in (values[each] or {})), (there or SECTIONS)[0])


def without_entry(text: str, at: tuple[str, ...], path: Path) -> str:
    """`text` without the entry at `at`, and the comments that are about it alone.

    Raises:
        ConfigurationError: a person has to make the change.
    """
    *above, parent, name = at
    remedy = f"take {dotted(at)} out by hand"
    section = _mapping(text, at[:-1], path, remedy)

    def expected(values: dict[str, Any]) -> None:
        for step in above:
            values = values[step]
        del values[parent][name]
        # A section of lines with nothing in it is as good as none, and the next entry stands in it as this one did.
        values[parent] = values[parent] or ({} if section.flow_style else None)

    return _checked(text, path, expected, remedy, lambda: _cut(text, section, name))


def with_new_name(text: str, section: str, before: str, now: str, path: Path) -> str:
    """`text` in which one entry of a section has another name, in its place.

    Raises:
        ConfigurationError: a person has to make the change.
    """

    def expected(values: dict[str, Any]) -> None:
        values[section] = {now if key == before else key: value for key, value in values[section].items()}

    def change() -> str:
        key, _ = next(pair for pair in _entries(_mapping(text, (section,), path, remedy)) if pair[0].value == before)
        written = scalar(now, key.style or "")
        return text[: key.start_mark.index] + written + text[key.end_mark.index :]

    remedy = f"rename {section}.{before} by hand"
    return _checked(text, path, expected, remedy, change)


def with_texts(text: str, texts: Mapping[KeyPath, Sequence[str]], path: Path) -> str:
    """Return `text` with other texts at some places that hold texts already; several for one are a list, or part of it.

    `texts` are in the order of the file.

    Raises:
        ConfigurationError: a person has to make the change.
    """

    def expected(values: dict[str, Any]) -> None:
        # From the end: what comes before in a list keeps its place.
        for at, replacement in reversed(list(texts.items())):
            *parents, last = at
            target: Any = values
            for step in parents:
                target = target[step]
            if isinstance(last, int):
                target[last : last + 1] = replacement
            else:
                target[last] = replacement[0] if len(replacement) == 1 else [*replacement]

    def change() -> str:
        root = compose(text, path)
        found = {at: node for at, node in (_scalars(root, ()) if root is not None else ()) if at in texts}
        changed = text
        for at, node in sorted(found.items(), key=lambda item: item[1].start_mark.index, reverse=True):
            start, end = node.start_mark.index, node.end_mark.index
            written = [text[start:end] if each == node.value else scalar(each, node.style or "") for each in texts[at]]
            joined = _separator(text, start).join(written) if isinstance(at[-1], int) else ", ".join(written)
            is_new_list = len(written) > 1 and not isinstance(at[-1], int)
            changed = changed[:start] + (f"[{joined}]" if is_new_list else joined) + changed[end:]
        return changed

    return _checked(text, path, expected, "change the names of its tools by hand", change) if texts else text


def _separator(text: str, start: int) -> str:
    """Return what stands between the items of the list in which one starts here."""
    before = text[text.rfind("\n", 0, start) + 1 : start]
    eol = "\r\n" if "\r\n" in text else "\n"
    return eol + before if before.strip() == "-" else ", "


def _checked(
    text: str, path: Path, expect: Callable[[dict[str, Any]], None], remedy: str, change: Callable[[], str]
) -> str:
    expected = deepcopy(parse(text, "user", path).values)
    expect(expected)
    changed = change()
    try:
        after = parse(changed, "user", path).values
    except ConfigurationError:
        after = None
    if after != expected:
        raise _unsafe(path, remedy)
    return changed


def _unsafe(path: Path, remedy: str) -> ConfigurationError:
    return configuration_error([Problem(str(path), "", f"cannot be edited safely; {remedy}")])


def _mapping(text: str, at: KeyPath, path: Path, remedy: str) -> MappingNode:
    """Return the mapping that is written at `at`; refuse what is there by an alias or a merge key alone."""
    found = compose(text, path)
    for step in at:
        entries = found.value if isinstance(found, MappingNode) else ()
        found = next((value for key, value in entries if key.value == step), None)
    if not isinstance(found, MappingNode):
        raise _unsafe(path, remedy)
    return found


def _entries(node: MappingNode) -> list[tuple[ScalarNode, Node]]:
    return [(key, value) for key, value in node.value if isinstance(key, ScalarNode)]


def _scalars(node: Node, at: KeyPath) -> Iterator[tuple[KeyPath, ScalarNode]]:
    match node:
        case MappingNode():
            for key, value in node.value:
                yield from _scalars(value, (*at, str(key.value)))
        case SequenceNode():
            for position, value in enumerate(node.value):
                yield from _scalars(value, (*at, position))
        case ScalarNode():
            yield at, node


def _cut(text: str, section: MappingNode, name: str) -> str:
    entries = _entries(section)
    position = next((at for at, (key, _) in enumerate(entries) if key.value == name), None)
    if position is None:
        return text
    key, value = entries[position]
    end = value_end(text, key, value)
    if section.flow_style:
        if position + 1 < len(entries):
            return text[: key.start_mark.index] + text[entries[position + 1][0].start_mark.index :]
        start = value_end(text, *entries[position - 1]) if position else key.start_mark.index
        return text[:start] + text[end:]
    start = text.rfind("\n", 0, key.start_mark.index) + 1
    column = key.start_mark.column
    if position:
        start = _before_comments(text, start, column)
    end = _after_comments(text, _line_end(text, max(end - 1, start)), column)
    return text[:start] + text[end:]


def _line_end(text: str, position: int) -> int:
    newline = text.find("\n", position)
    return len(text) if newline < 0 else newline + 1


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _before_comments(text: str, start: int, column: int) -> int:
    """Return the start of the comments that stand right above a line, as far in as its key."""
    while start:
        above = text.rfind("\n", 0, start - 1) + 1
        line = text[above:start]
        if not line.lstrip(" ").startswith("#") or _indent(line) != column:
            break
        start = above
    return start


def _after_comments(text: str, end: int, column: int) -> int:
    """Return the end of the comments right below an entry that are further in than its key."""
    while end < len(text):
        line = text[end : _line_end(text, end)]
        if not line.lstrip(" ").startswith("#") or _indent(line) <= column:
            break
        end += len(line)
    return end
