"""Ownership of names: a name that begins with a configured server's id belongs to that server or to none.

Servers choose the names of their tools, so one may name a tool as if it were another's. Only the configuration
decides, because it also knows servers that are disabled, still starting, or have no such tool.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from pml_gateway.text import words_of
from pml_gateway.types import SEPARATORS

CLIENT_PREFIX = "mcp__"
"""Prefix that some clients put before a server's id."""

ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
"""Characters that become `_` in the names of tools, including the ids that they begin with."""

_ENDS = re.compile(f"(?=({'|'.join(map(re.escape, SEPARATORS))}))")


@dataclass(frozen=True, slots=True)
class Claim:
    """The server that a name belongs to, and the part after the separator; None if the name is just the server's id."""

    upstream_id: str
    own_name: str | None


@dataclass(frozen=True)
class Ownership:
    """The ids of all configured servers, enabled or not, which no other server's names may begin with.

    `own` are ids under which the gateway's owner names tools, which are those of workflows.
    """

    servers: tuple[str, ...] = ()
    own: frozenset[str] = frozenset()

    def claim(self, name: str) -> Claim | None:
        """Return the owner of a name by the longest id that it begins with; None if it could be any server's."""
        found = self._claim(name)
        if name[: len(CLIENT_PREFIX)].casefold() != CLIENT_PREFIX:
            return found
        behind = self._claim(name[len(CLIENT_PREFIX) :])
        if found is None or behind is None:
            return found or behind
        # Both fit only if a server's id begins with the prefix, or is the word in it.
        return behind if _length(found, name) < _length(behind, name) else found

    def of(self, name: str) -> str | None:
        """Return the server with whose id and a separator a name begins."""
        claim = self.claim(name)
        return None if claim is None or claim.own_name is None else claim.upstream_id

    def of_pattern(self, start: str) -> str | None:
        """Return the server that a pattern with this beginning is about; None if that may be several.

        A bare id may also begin other ids (`git*`), so it decides nothing unless it begins with an id and a separator.
        """
        claim = self.claim(start)
        if claim is None or (claim.own_name is None and self._before_separator(start) is None):
            return None
        return claim.upstream_id

    def allows(self, name: str, upstream_id: str) -> bool:
        """Return True if a tool of this server may have this name."""
        claim = self.claim(name)
        return claim is None or claim.upstream_id == upstream_id

    def is_sole(self, upstream_id: str) -> bool:
        """Return True if a name without a server can only be this one's, as no other server could choose the same."""
        return upstream_id in self.own or self.servers == (upstream_id,)

    def rule_name(self, upstream_id: str, name: str, qualified_name: str) -> str:
        """Return the name by which rules know a tool: its qualified one, unless another server could have chosen it."""
        is_certain = self.of(qualified_name) == upstream_id or self.is_sole(upstream_id)
        return qualified_name if is_certain else f"{upstream_id}:{name}"

    def spoken(self, words: tuple[str, ...]) -> tuple[frozenset[str], tuple[str, ...]]:
        """Return the servers with the longest id that a name's words begin with, and the words after it."""
        for length in range(min(len(words), self._most_words), 0, -1):
            if owners := self._by_words.get(words[:length]):
                return owners, words[length:]
        return frozenset(), words

    @cached_property
    def ids(self) -> frozenset[str]:
        """Return every id that names may begin with."""
        return self.own.union(self.servers)

    @cached_property
    def _by_spelling(self) -> dict[str, str]:
        """Return ids by their spellings, in any case and as in tool names; if two are spelled alike, the first wins."""
        spelled: dict[str, str] = {}
        for write in (str, _legal):
            for upstream_id in (*self.servers, *sorted(self.own)):
                spelled.setdefault(write(upstream_id).casefold(), upstream_id)
        return spelled

    @cached_property
    def _longest(self) -> int:
        return max(map(len, (*self.ids, *self._by_spelling)), default=0)

    @cached_property
    def _by_words(self) -> dict[tuple[str, ...], frozenset[str]]:
        found: dict[tuple[str, ...], frozenset[str]] = {}
        for upstream_id in self.ids:
            words = words_of(upstream_id)
            found[words] = found.get(words, frozenset()) | {upstream_id}
        return found

    @cached_property
    def _most_words(self) -> int:
        return max(map(len, self._by_words), default=0)

    def _claim(self, name: str) -> Claim | None:
        if len(name) <= self._longest and (upstream_id := self._server(name)) is not None:
            return Claim(upstream_id, None)
        return self._before_separator(name)

    def _before_separator(self, name: str) -> Claim | None:
        ends = list(_ENDS.finditer(name, 0, self._longest + max(map(len, SEPARATORS))))
        for end in reversed(ends):
            upstream_id = self._server(name[: end.start()])
            if upstream_id is not None:
                return Claim(upstream_id, name[end.end(1) :])
        return None

    def _server(self, spelled: str) -> str | None:
        return spelled if spelled in self.ids else self._by_spelling.get(spelled.casefold())


def _legal(upstream_id: str) -> str:
    return ILLEGAL.sub("_", upstream_id)


def _length(claim: Claim, name: str) -> int:
    """Return the number of characters of a name before the tool's own."""
    return len(name) - len(claim.own_name or "")
