"""Patterns of whitelist, blacklist, allow and deny rules.

Rules that deny match by every name of a tool. Rules that grant (`allow`, whitelist, groups) match only by names that
no other server could choose for its own tools, since a hostile server would choose them to be allowed.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.ownership import Ownership
from pml_gateway.config.settings import META_TOOLS

_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class ToolPatterns:
    """Entries that deny: qualified names, `server:tool`, `server__tool` and globs over any of these."""

    exact: frozenset[str]
    globs: re.Pattern[str] | None

    @property
    def names_any(self) -> bool:
        """Return True if there is any entry."""
        return bool(self.exact)

    def matches(self, tool: CatalogTool) -> bool:
        """Return True if an entry names this tool, by any of its names, independent of the alias used."""
        return self.matches_any((tool.qualified_name, *_sources(tool), *tool.former_names, *tool.refused_names))

    def matches_any(self, names: Iterable[str]) -> bool:
        """Return True if an entry matches any of these names."""
        return any(name in self.exact or (self.globs is not None and self.globs.match(name)) for name in names)

    def about(self, _upstream_id: str) -> Iterator[str]:
        """Yield the entries that may concern this server: here, all of them."""
        yield from self.exact

    def fit(self, _upstream_id: str, names: Iterable[str]) -> bool:
        """Return True if an entry matches anything of this server under these names."""
        return self.matches_any(names)

    def may_be_about(self, upstream_id: str, ownership: Ownership) -> bool:
        """Return True if an entry may match something of a server whose lists are not known yet."""
        named = (ownership.of_pattern(_literal(entry)) for entry in self.exact if entry not in META_TOOLS)
        return any(server in (None, upstream_id) for server in named)

    def may_begin(self, start: str) -> bool:
        """Return True if an entry may match a name with this prefix."""
        for entry in self.exact:
            literal = _literal(entry)
            if literal.startswith(start) or (literal != entry and start.startswith(literal)):
                return True
        return False


@dataclass(frozen=True, slots=True)
class ToolGrants:
    """Entries that grant, by the server that they name; those in `anywhere` begin with no server's id.

    An entry that begins with a server's id and a separator concerns only that server. A name without a server counts
    only if no other server could have it: with a single server, and for workflows.
    """

    ownership: Ownership
    anywhere: ToolPatterns
    by_server: dict[str, ToolPatterns]

    @property
    def matches_all(self) -> bool:
        """Return True if an entry is the glob that matches everything."""
        return "*" in self.anywhere.exact

    def admits(self, tool: CatalogTool) -> bool:
        """Return True if an entry grants this tool."""
        return self.fit(tool.upstream_id, (tool.qualified_name, *_sources(tool), *tool.former_names))

    def about(self, upstream_id: str) -> Iterator[str]:
        """Yield the entries that may concern this server."""
        for patterns in self._of(upstream_id):
            yield from patterns.exact

    def fit(self, upstream_id: str, names: Iterable[str]) -> bool:
        """Return True if an entry matches anything of this server under these names."""
        if self.matches_all:
            return True
        return any(
            patterns.matches_any((name,)) and self._is_certain(upstream_id, name)
            for name in names
            for patterns in self._of(upstream_id)
        )

    def may_admit(self, upstream_id: str) -> bool:
        """Return True if an entry may grant something of a server whose lists are not known yet."""
        starts = (f"{upstream_id}{separator}" for separator in (":", "__"))
        return any(patterns.may_begin(start) for start in starts for patterns in self._of(upstream_id))

    def gives_all_of(self, upstream_id: str) -> bool:
        """Return True if an entry grants all tools that a server may have."""
        own = self.by_server.get(upstream_id)
        every = (f"{upstream_id}{separator}*" for separator in (":", "__"))
        return self.matches_all or (own is not None and any(entry in own.exact for entry in every))

    def _of(self, upstream_id: str) -> Iterator[ToolPatterns]:
        yield self.anywhere
        if (patterns := self.by_server.get(upstream_id)) is not None:
            yield patterns

    def _is_certain(self, upstream_id: str, name: str) -> bool:
        return self.ownership.of(name) == upstream_id or (
            self.ownership.is_sole(upstream_id) and self.ownership.allows(name, upstream_id)
        )


def compile_patterns(entries: Iterable[str], servers: Collection[str] = ()) -> ToolPatterns:
    """Compile entries that deny, the id of one of `servers` all of it; blanks around and empty ones are ignored."""
    cleaned = [name for entry in _cleaned(entries) for name in (entry, *([f"{entry}:*"] if entry in servers else ()))]
    globs = [fnmatch.translate(entry) for entry in cleaned if _GLOB.search(entry)]
    return ToolPatterns(frozenset(cleaned), re.compile("|".join(globs)) if globs else None)


def about_meta_tools(entries: Iterable[str]) -> ToolPatterns:
    """Compile the entries that may deny meta-tools: one that begins with a wildcard concerns only tools of servers."""
    return compile_patterns(entry for entry in entries if not _GLOB.match(entry.strip()))


def compile_grants(entries: Iterable[str], ownership: Ownership) -> ToolGrants:
    """Compile entries that grant; the id of a server grants all of it."""
    anywhere: list[str] = []
    by_server: dict[str, list[str]] = {}
    for given in _cleaned(entries):
        entry = f"{given}:*" if given in ownership.ids else given
        upstream_id = ownership.of_pattern(_literal(entry))
        (anywhere if upstream_id is None else by_server.setdefault(upstream_id, [])).append(entry)
    named = {upstream_id: compile_patterns(some) for upstream_id, some in by_server.items()}
    return ToolGrants(ownership, compile_patterns(anywhere), named)


def unmatched(entries: Iterable[str], tools: Iterable[CatalogTool], servers: Collection[str]) -> list[str]:
    """Return the entries that deny no tool of the catalog, which are usually mistyped."""
    known = list(tools)
    return [entry for entry in entries if not any(compile_patterns([entry], servers).matches(tool) for tool in known)]


def without_grants(entries: Iterable[str], tools: Iterable[CatalogTool], ownership: Ownership) -> dict[str, list[str]]:
    """Return the entries that grant no tool of the catalog, each with the tools that it names, as `server:tool`.

    Those are not granted because any server could choose the name in the entry.
    """
    known = list(tools)
    idle: dict[str, list[str]] = {}
    for entry in entries:
        granted, named = compile_grants([entry], ownership), compile_patterns([entry])
        if not any(granted.admits(tool) for tool in known):
            idle[entry] = [tool.source for tool in known if named.matches_any((tool.qualified_name,))]
    return idle


def _sources(tool: CatalogTool) -> tuple[str, str]:
    """Return the names of a tool that contain its server's id, which no other server can have."""
    return tool.source, f"{tool.upstream_id}__{tool.name}"


def _cleaned(entries: Iterable[str]) -> list[str]:
    return [entry.strip() for entry in entries if entry.strip()]


def _literal(entry: str) -> str:
    """Return the part of an entry before its first wildcard."""
    glob = _GLOB.search(entry)
    return entry[: glob.start()] if glob else entry
