"""Namespaces: the tools a client may call, grouped as actions under a name that is no tool's."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pml_gateway.catalog.build import LONGEST_BEFORE
from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.ownership import Ownership
from pml_gateway.config.settings import NamespaceSettings
from pml_gateway.exposure.patterns import compile_grants
from pml_gateway.types import Effect

_PLAIN_ACTION = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
_SEPARATORS = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, eq=False)
class Namespace:
    """One listed tool whose `action` selects one of several upstream tools; actions are in catalog order."""

    name: str
    actions: dict[str, CatalogTool]
    ownership: Ownership
    former_name: str = ""
    """The name before names were limited to fewer characters."""

    @cached_property
    def _loosely(self) -> dict[str, list[str]]:
        spellings: dict[str, list[str]] = {}
        for action in self.actions:
            spellings.setdefault(loosely(action), []).append(action)
        return spellings

    @cached_property
    def by_tool(self) -> dict[str, str]:
        """Return the action of each tool, by qualified name."""
        return {tool.qualified_name: action for action, tool in self.actions.items()}

    def find(self, given: str) -> str | None:
        """Return the action of this name, ignoring case and separators, or of a tool's own names.

        A name that begins with a configured server's id means an action of that server, or none.
        """
        if given in self.actions:
            return given
        if given in self.by_tool:
            return self.by_tool[given]
        spelled = [action for action in self._loosely.get(loosely(given), ()) if self._may_mean(given, action)]
        if len(spelled) == 1:
            return spelled[0]
        named = [
            action for action, tool in self.actions.items() if given in (tool.source, tool.name, *tool.former_names)
        ]
        named = [action for action in named if self._may_mean(given, action)]
        return named[0] if len(named) == 1 else None

    def _may_mean(self, given: str, action: str) -> bool:
        return self.ownership.allows(given, self.actions[action].upstream_id)


def loosely(name: str) -> str:
    """Return `name` in lower case without separators: `readFile`, `read_file` and `read-file` are equal."""
    return _SEPARATORS.sub("", name.lower())


def group(
    tools: Sequence[CatalogTool],
    settings: NamespaceSettings,
    *,
    taken: Collection[str],
    ownership: Ownership,
    max_length: int = LONGEST_BEFORE,
) -> dict[str, Namespace]:
    """Return the namespaces of these tools, sorted by name.

    A tool belongs to the first configured group that matches it, or else to that of its upstream. A name in `taken` is
    changed in a way that depends only on the arguments.
    """
    members: dict[str, list[CatalogTool]] = {}
    groups = [(name, compile_grants(patterns, ownership)) for name, patterns in settings.groups.items()]
    for tool in tools:
        owner = next((name for name, patterns in groups if patterns.admits(tool)), tool.upstream_id)
        if settings.split_by_access:
            access = "read" if tool.effect is Effect.READ else "write"
            owner = f"{owner}_{access}"
        members.setdefault(owner, []).append(tool)
    used = set(taken)
    namespaces: dict[str, Namespace] = {}
    for owner in sorted(members):
        name = next(candidate for candidate in _candidates(owner, max_length) if candidate not in used)
        longer = next(candidate for candidate in _candidates(owner, LONGEST_BEFORE) if candidate not in taken)
        used.add(name)
        actions = _named_actions(members[owner], ownership)
        namespaces[name] = Namespace(name, actions, ownership, longer)
    return dict(sorted(namespaces.items()))


def find_namespace(namespaces: Mapping[str, Namespace], name: str) -> Namespace | None:
    """Return the namespace of this name, or of a longer former name."""
    found = namespaces.get(name)
    if found is not None or len(name) > LONGEST_BEFORE:
        return found
    return next((each for each in namespaces.values() if len(each.name) < len(name) and each.former_name == name), None)


def _candidates(owner: str, max_length: int) -> Iterator[str]:
    cleaned = _ILLEGAL.sub("_", owner) or "unnamed"
    for suffix in ("", "_tools", "_actions"):
        if len(cleaned) + len(suffix) <= max_length:
            yield cleaned + suffix
    for attempt in range(1000):
        digest = hashlib.sha256(f"{owner}\0{attempt}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
        yield f"{cleaned[: max_length - 9]}_{digest}"


def _named_actions(tools: Iterable[CatalogTool], ownership: Ownership) -> dict[str, CatalogTool]:
    """Return each tool by its own name, or by its qualified name if two share the name or it is not plain.

    A name that belongs to another server is not plain either.
    """
    known = list(tools)
    counts = Counter(tool.name for tool in known)
    actions: dict[str, CatalogTool] = {}
    for tool in known:
        is_its_own = ownership.allows(tool.name, tool.upstream_id)
        plain = counts[tool.name] == 1 and _PLAIN_ACTION.fullmatch(tool.name) and is_its_own
        actions[tool.name if plain else tool.qualified_name] = tool
    return actions
