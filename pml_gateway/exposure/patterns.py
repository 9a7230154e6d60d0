"""Patterns of whitelist, blacklist, allow and deny rules: does this tool match?"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass

from pml_gateway.catalog.model import CatalogTool

_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class ToolPatterns:
    """Qualified names, `server:tool` and globs over either; always about the tool, never about the alias used."""

    exact: frozenset[str]
    globs: re.Pattern[str] | None

    @property
    def matches_all(self) -> bool:
        """Whether an entry is the glob that fits everything."""
        return "*" in self.exact

    @property
    def names_any(self) -> bool:
        """Whether there is any entry."""
        return bool(self.exact)

    def matches(self, tool: CatalogTool) -> bool:
        """Whether any entry names this tool."""
        return self.matches_any((tool.qualified_name, tool.source))

    def matches_any(self, names: Iterable[str]) -> bool:
        """Whether any entry fits any of these names."""
        return any(name in self.exact or (self.globs is not None and self.globs.match(name)) for name in names)

    def may_begin(self, start: str) -> bool:
        """Whether an entry may fit a name that begins so."""
        for entry in self.exact:
            glob = _GLOB.search(entry)
            literal = entry[: glob.start()] if glob else entry
            if literal.startswith(start) or (glob is not None and start.startswith(literal)):
                return True
        return False


def compile_patterns(entries: Iterable[str]) -> ToolPatterns:
    """Compile entries; surrounding blanks and empty entries mean nothing."""
    cleaned = [entry.strip() for entry in entries if entry.strip()]
    globs = [fnmatch.translate(entry) for entry in cleaned if _GLOB.search(entry)]
    return ToolPatterns(frozenset(cleaned), re.compile("|".join(globs)) if globs else None)


def unmatched(entries: Iterable[str], tools: Iterable[CatalogTool]) -> list[str]:
    """The entries that name no tool of the catalog, which are usually mistyped."""
    known = list(tools)
    return [entry for entry in entries if not any(compile_patterns([entry]).matches(tool) for tool in known)]
