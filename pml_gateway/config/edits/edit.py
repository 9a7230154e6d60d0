"""Edits of a configuration file: only the changed values, under a lock, shown as a diff, with a backup, and undone.

The nodes of the parsed text say where a value stands; only those characters are replaced, so comments, order, quotes,
alignment and line endings of everything else stay byte for byte. The result is parsed again and must say what was
asked for and nothing else; where it does not (aliases, merge keys), the edit is refused and left to a person.
"""

from __future__ import annotations

import difflib
import json
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from pml_gateway.config.document import compose, parse, read_bytes
from pml_gateway.config.layers import KeyPath, dotted
from pml_gateway.config.presets import Preset
from pml_gateway.config.problems import SECRET_SECTIONS, Problem, configuration_error
from pml_gateway.errors import ConfigurationError
from pml_gateway.files import OWNER_ONLY, locked, write_atomically
from pml_gateway.paths import CONFIG_NAME
from pml_gateway.secrets.judgement import Keys, Secret, mapped, shown
from pml_gateway.secrets.masking import mask_keys, mask_text

INDENT = 2

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*\Z")
_RESERVED = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf"})
_COLON = re.compile(r"\s*:")
_ALIAS = re.compile(r"\s*:\s*(\*[^\s,\]}]+)")
_COMMENT_GAP = re.compile(r" {2,}(?=#)")

_SECTIONS = SECRET_SECTIONS | {"mcpServers"}

KEPT_BACKUPS = 10
"""Number of backups of a file that are kept; `pml disconnect` and `pml migrate back` have their own."""

_BACKUP = re.compile(r"\.bak-(?P<time>\d{8}-\d{6})(?:-(?P<number>\d+))?\Z")

MAX_CHANGED_LINES, MAX_CHANGED_WORDS = 5_000, 2_000
"""difflib takes seconds beyond, more for words, which repeat; the caller has another way."""

Change = tuple[int, int, Sequence[str]]
"""Pieces of the base that are replaced, and what by."""

_LINE = re.compile(r"[^\n]*\n|[^\n]+")

_WORD = re.compile(r'"(?:[^"\\\r\n]|\\.)*"|\r?\n|[ \t]+|\w+|.', re.DOTALL)
"""A quoted text, the end of a line, white space, a word, or any other character."""


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
    """Return a scalar or list in YAML, on one line."""
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
        """Return the text with `values` laid over it."""
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
        """Return the start of the value of `key`: of the alias itself, or after the colon of an empty value."""
        start, end = value.start_mark.index, value.end_mark.index
        if _is_alias(key, value) and (alias := _ALIAS.match(self.text, key.end_mark.index)):
            return alias.span(1)
        if start == end and (colon := _COLON.match(self.text, key.end_mark.index)):
            return colon.end(), colon.end()
        return int(start), int(end)

    def _end(self, node: Node) -> int:
        """Return the end of the last value of `node`; block nodes themselves end after the comments that follow."""
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
        """Return the end of the last line before `position` that holds more than a comment.

        An alias or an empty item at the end of a list has no position of its own.
        """
        lines = self.text[:position].splitlines(keepends=True)
        while lines and (not lines[-1].strip() or lines[-1].lstrip().startswith("#")):
            lines.pop()
        return len("".join(lines).rstrip("\r\n"))

    def _refuse(self, node: Node, at: KeyPath, reason: str) -> None:
        raise configuration_error([Problem(f"{self.path}:{node.start_mark.line + 1}", dotted(at), reason)])


def value_end(text: str, key: Node, value: Node) -> int:
    """Return the end of the value of `key` in its source text."""
    edits = _Edits(text, Path(CONFIG_NAME))
    if _is_alias(key, value) or value.start_mark.index == value.end_mark.index:
        return edits._span(key, value)[1]
    return edits._end(value)


def _is_alias(key: Node, value: Node) -> bool:
    """Return True if `value` is an alias, whose node is that of an anchor before the key."""
    return value is not key and bool(value.start_mark.index < key.start_mark.index)


def _quote(key: Node) -> str:
    return '"' if isinstance(key, ScalarNode) and key.style == '"' else ""


def masked_yaml(text: str, path: Path = Path(CONFIG_NAME)) -> str:
    """`text`, laid out as before, without the credentials of its servers, clients, workflows and storage.

    Raises:
        ConfigurationError: the text is broken YAML.
    """
    root = compose(text, path)
    judged: dict[int, tuple[int, str]] = {}

    def judge(scalar: str, find: Callable[[], tuple[Secret, ...]], _: Keys) -> str:
        assert isinstance(scalar, _Written)
        start, end = scalar.node.start_mark.index, scalar.node.end_mark.index
        secrets = find()
        judged[start] = (end, _in_its_style(scalar, shown(scalar, secrets)) if secrets else text[start:end])
        return scalar

    if isinstance(root, MappingNode):
        for key, section in root.value:
            if key.value in _SECTIONS:
                values = _values(section, set())
                mapped({"url": values} if isinstance(section, ScalarNode) else values, judge)
    parts: list[str] = []
    at = 0
    for start in sorted(judged):
        end, scalar = judged[start]
        # The text between scalars, such as comments, is masked by its form alone.
        parts += [mask_keys(text[at:start]), scalar]
        at = end
    return "".join([*parts, mask_keys(text[at:])])


class _Written(str):
    """The text of a scalar, which knows where it stands."""

    __slots__ = ("node",)
    node: ScalarNode


def _values(node: Node, seen: set[int]) -> Any:
    """Return a section as plain values, each node once; a mapping as a list of pairs, since a key can occur twice."""
    if id(node) in seen:
        return None
    seen.add(id(node))
    match node:
        case MappingNode():
            return [{str(key.value): _values(value, seen)} for key, value in node.value]
        case SequenceNode():
            return [_written(item) if isinstance(item, ScalarNode) else _values(item, seen) for item in node.value]
        case ScalarNode():
            return _written(node)


def _written(node: ScalarNode) -> _Written:
    text = _Written(node.value)
    text.node = node
    return text


def _in_its_style(scalar: _Written, masked: str) -> str:
    eol = "\n" if scalar.node.style in ("|", ">") else ""
    return f'"{masked}"{eol}' if scalar.node.style else masked


@dataclass(frozen=True, slots=True)
class FileEdit:
    """Change of a file, and the backup of the old text.

    `backup` is None where there was nothing to keep, or nothing was written.
    """

    path: Path
    before: str
    after: str
    backup: Path | None

    @property
    def has_changed(self) -> bool:
        """Return True if the texts differ."""
        return self.before != self.after

    @property
    def diff(self) -> str:
        """The change as a unified diff, with credentials masked."""
        name = str(self.path)
        before, after = (_shown(text, self.path).splitlines(keepends=True) for text in (self.before, self.after))
        lines = difflib.unified_diff(before, after, name, name)
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _shown(text: str, path: Path) -> str:
    try:
        return masked_yaml(text, path)
    except ConfigurationError:
        # A broken text that a backup replaces: its structure is unknown, so each line is masked by its form.
        return "".join(mask_text(line) for line in text.splitlines(keepends=True))


def edit_file(path: Path, change: Callable[[str], str], *, dry_run: bool = False) -> FileEdit:
    """Apply `change` to the text of `path`, which is created where it is missing.

    Raises:
        ConfigurationError: the file cannot be read or written, or `change` refuses it; nothing is written then.
    """
    target = path.resolve()
    if dry_run:
        before = _text(target)
        return FileEdit(path, before, change(before), None)
    try:
        with locked(target):
            before = _text(target)
            after = change(before)
            if before == after:
                return FileEdit(path, before, after, None)
            mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else OWNER_ONLY
            backup = _back_up(target, path, before, mode) if target.exists() else None
            try:
                write_atomically(target, after, mode)
            except OSError:
                if backup is not None:
                    backup.unlink(missing_ok=True)
                raise
            _forget_old(path)
    except OSError as exc:
        raise ConfigurationError(f"{path} cannot be written: {exc.strerror}", hint="check its owner and mode") from exc
    return FileEdit(path, before, after, backup)


def _text(path: Path) -> str:
    if not path.exists():
        return ""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as exc:
        raise ConfigurationError(f"{path} is not UTF-8 text (byte {exc.start})", hint="save it as UTF-8") from exc


def _back_up(target: Path, path: Path, text: str, mode: int) -> Path:
    """Copy `target` to a new file next to `path`, named after the time; never over an earlier backup.

    It gets the mode of the file, or is private to its owner if it holds secrets. The caller holds a lock.
    """
    now = f"{datetime.now():%Y%m%d-%H%M%S}"
    stem = f"{path.name}.bak-{now}"
    # A number is not used again within its second, or the order of the names would not be that of the backups.
    attempt = max((number + 1 for time, number, _ in _backups(path) if time == now), default=0)
    backup = path.with_name(stem if not attempt else f"{stem}-{attempt}")
    write_atomically(backup, target.read_bytes(), mode & OWNER_ONLY if _may_hold_secrets(text, path) else mode)
    return backup


def _may_hold_secrets(text: str, path: Path) -> bool:
    try:
        return masked_yaml(text, path) != text
    except ConfigurationError:
        return True


def _backups(path: Path) -> list[tuple[str, int, Path]]:
    """Return the backups of `path`, oldest first: the time, the number within its second, the file."""
    found = []
    for candidate in path.parent.iterdir():
        name = _BACKUP.fullmatch(candidate.name.removeprefix(path.name))
        if name is not None and candidate.name.startswith(path.name):
            found.append((name["time"], int(name["number"] or 0), candidate))
    return sorted(found)


def file_backups(path: Path) -> list[Path]:
    """Return the backups next to a configuration file, oldest first."""
    return [backup for *_, backup in _backups(path)] if path.parent.is_dir() else []


def _forget_old(path: Path) -> None:
    for *_, old in _backups(path)[:-KEPT_BACKUPS]:
        # One that cannot be removed is no reason to refuse the edit.
        with suppress(OSError):
            old.unlink()


def merged(base: str, ours: str, theirs: str) -> str | None:
    """Merge both edits into `base`: by lines, or by words if both changed a line; return None if they overlap.

    Two valid edits may give an invalid text (two last members of a list), so the caller checks the result.
    """
    for piece, limit in ((_LINE, MAX_CHANGED_LINES), (_WORD, MAX_CHANGED_WORDS)):
        whole = _merged(piece.findall(base), piece.findall(ours), piece.findall(theirs), limit)
        if whole is not None:
            return whole
    return None


def _merged(base: list[str], ours: list[str], theirs: list[str], limit: int) -> str | None:
    first, second = _changes(base, ours, limit), _changes(base, theirs, limit)
    if first is None or second is None:
        return None
    if any(_overlap(mine, other) for mine in first for other in second):
        return None
    # Of two at one place, the one that is made last comes first.
    for start, end, replacement in sorted([*first, *second], key=lambda change: change[:2], reverse=True):
        base[start:end] = replacement
    return "".join(base)


def _overlap(mine: Change, other: Change) -> bool:
    """Return True if both change the same piece. If both only add at one place, the other's comes first."""
    return mine[0] < other[1] and other[0] < mine[1]


def _changes(before: Sequence[str], after: Sequence[str], limit: int) -> list[Change] | None:
    same = 0
    while same < min(len(before), len(after)) and before[same] == after[same]:
        same += 1
    tail = 0
    while tail < min(len(before), len(after)) - same and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    middle, new = before[same : len(before) - tail], after[same : len(after) - tail]
    if max(len(middle), len(new)) > limit:
        return None
    matcher = SequenceMatcher(None, middle, new, autojunk=False)
    return [
        (same + start, same + end, new[new_start:new_end])
        for kind, start, end, new_start, new_end in matcher.get_opcodes()
        if kind != "equal"
    ]
