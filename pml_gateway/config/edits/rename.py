"""A server's new name in a configuration file: the rules and steps that name its tools by the old one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from pml_gateway.config.layers import KeyPath, nodes

_STARTS = ("{}:", "{}__", "pml://{}/", "ui://pml/{}/")
"""Prefixes of the names that rules use for a server's tools, prompts and resources."""

_TOKEN = re.compile(r"\[!?\]?[^\]]*\]|.", re.DOTALL)
"""One character of a glob, or a wildcard or set."""

_SHORTENED = re.compile(r"_[0-9a-f]{8}\Z")
"""Suffix of a shortened name."""


@dataclass(frozen=True, slots=True)
class Renaming:
    """A server's old and new id.

    `names` are names of its tools that begin with the old id, each with what the server calls the tool: a shortened one
    is not spelled out of the two. `others` are the ids of the other servers.
    """

    before: str
    now: str
    names: Mapping[str, str] = field(default_factory=dict)
    others: frozenset[str] = frozenset()

    def entries(self, entry: str, *, takes_away: bool = False) -> tuple[str, ...]:
        """Return the entries that mean after the renaming what `entry` of a rule means before it.

        Args:
            entry: a name or a glob.
            takes_away: the rule denies; it is about every server that has such a name.
        """
        if entry == self.before:
            return (self.now, entry) if takes_away else (self.now,)
        is_of_another = self._is_of_another(entry)
        if is_of_another and not takes_away:
            return (entry,)
        rests = self._rests(entry)
        shortened = {
            f"{self.now}:{own}": None
            for name, own in self.names.items()
            if fnmatchcase(name, entry) and not any(fnmatchcase(own, rest) for rest in rests)
        }
        found = (*shortened, *(() if shortened and _SHORTENED.search(entry) else rests.values()))
        new = tuple(each for each in found if not fnmatchcase(each, entry))
        is_own = any(entry.startswith(start.format(self.before)) for start in _STARTS) and not is_of_another
        return new if new and is_own else (*new, entry)

    def _rests(self, entry: str) -> dict[str, str]:
        """Return what an entry says behind the old id and not behind the new one, each with the entry for the new."""
        rests: dict[str, str] = {}
        for start in _STARTS:
            given = _rests(entry, start.format(self.now))
            for rest in sorted(_rests(entry, start.format(self.before)) - given):
                rests.setdefault(rest, start.format(self.now) + rest)
        return rests

    def opens(self, entry: str) -> bool:
        """Return True if `entry` gives something of the server by its new id that it does not give by the old one."""
        return any(_rests(entry, each.format(self.now)) - _rests(entry, each.format(self.before)) for each in _STARTS)

    def opens_by_id(self, pattern: str) -> bool:
        """Return True if a pattern fits the new id and not the old one."""
        return fnmatchcase(self.now, pattern) and not fnmatchcase(self.before, pattern)

    def _is_of_another(self, entry: str) -> bool:
        """Return True if an entry names a server whose id begins with this one's and a separator."""
        longer = (each for each in self.others if each.startswith((f"{self.before}:", f"{self.before}__")))
        return any(entry.startswith((f"{each}:", f"{each}__")) for each in longer)

    def changes(self, values: Mapping[str, Any]) -> dict[KeyPath, tuple[str, ...]]:
        """Return the texts of a file, as it is written, that say something else afterwards."""
        changes: dict[KeyPath, tuple[str, ...]] = {}
        for path, text, takes_away in _tool_names(values):
            of = self._servers if _is_of_servers(path) else self.entries
            entries = of(text, takes_away=takes_away)
            if entries != (text,):
                changes[path] = entries[:1] if path[0] == "workflows" else entries
        return changes

    def _servers(self, entry: str, *, takes_away: bool) -> tuple[str, ...]:
        """Return the ids and globs of servers that mean after the renaming what `entry` means before it."""
        if not fnmatchcase(self.before, entry) or fnmatchcase(self.now, entry):
            return (entry,)
        return (self.now,) if entry == self.before and not takes_away else (self.now, entry)


def mentions(values: Mapping[str, Any], name: str) -> list[KeyPath]:
    """Return the rules and steps of a file that begin with a server's name."""
    return [path for path, text, _ in _tool_names(values) if text == name or text.startswith((f"{name}:", f"{name}__"))]


def _rests(pattern: str, start: str) -> frozenset[str]:
    """Return the globs that fit what follows `start` in the texts that `pattern` fits."""
    tokens = _TOKEN.findall(pattern)
    reached = {0}
    for character in start:
        tried, reached = reached, set()
        for position in tried:
            while position < len(tokens) and tokens[position] == "*":
                reached.add(position)
                position += 1
            if position < len(tokens) and fnmatchcase(character, tokens[position]):
                reached.add(position + 1)
    return frozenset("".join(tokens[position:]) for position in reached)


def _tool_names(values: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str, bool]]:
    """Yield each text that names tools, with its place and whether it takes them away."""
    for path, value in nodes(values):
        if not isinstance(value, str):
            continue
        match path:
            case ("rules", int(position), "match", "tool" | "server", *_):
                yield path, value.strip(), values["rules"][position].get("do") != "allow"
            case (
                ("gateway", "blacklisted_tools", int()) | ("clients", _, "deny", int()) | ("sets", _, "exclude", int())
            ):
                yield path, value.strip(), True
            case (
                ("gateway", "hybrid", "whitelisted_tools", int())
                | ("gateway", "namespaces", "groups", _, int())
                | ("clients", _, "allow", int())
                | ("sets", _, "include", int())
                | ("workflows", _, "steps", int(), "tool")
            ):
                yield path, value.strip(), False


def _is_of_servers(path: KeyPath) -> bool:
    """Return True if ids of servers stand at a place, and not names of tools."""
    return path[0] == "rules" and path[3] == "server"
