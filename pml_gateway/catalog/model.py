"""The catalog: an immutable snapshot of every tool of every upstream, under the names clients see."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from pml_gateway.catalog.ownership import Ownership
from pml_gateway.catalog.prompts_and_resources import OfferTable
from pml_gateway.catalog.schema import combines_only_at_root
from pml_gateway.catalog.visibility import Visibility
from pml_gateway.catalog.wire import encode, tool_for_version
from pml_gateway.text import words_of
from pml_gateway.types import Effect, JsonObject, effect_of, is_idempotent

EXAMPLES = ("input_examples", "inputExamples", "examples")
"""Fields in which servers give examples of a tool's arguments; no protocol version has them, so clients get none."""


@dataclass(frozen=True, slots=True)
class UpstreamListing:
    """The last listing of one upstream's tools, unchanged and in its order."""

    upstream_id: str
    tools: tuple[JsonObject, ...]
    stale: bool = False


@dataclass(frozen=True, eq=False)
class CatalogTool:
    """One tool: the definition clients get, and the original schema that calls are checked against.

    A `hidden` tool exists inside composite tools only, an `app_only` one for the user interface of its server. `listed`
    is the server's own definition, unchanged. The tool does not get its `refused_names` because they are another's, but
    rules that take tools away match it by them. It can also be called by its `former_names`, and every rule matches it
    by them.
    """

    qualified_name: str
    upstream_id: str
    name: str
    definition: JsonObject
    input_schema: JsonObject
    repairs: tuple[str, ...] = ()
    stale: bool = False
    task_only: bool = False
    app_only: bool = False
    hidden: bool = False
    listed: JsonObject = field(default_factory=dict)
    refused_names: tuple[str, ...] = ()
    reach: frozenset[str] = frozenset()
    former_names: tuple[str, ...] = ()
    _json: dict[str, bytes] = field(default_factory=dict, init=False, repr=False)
    """Finished definitions by protocol version, for all gateways of the process that have this tool."""

    def as_json(self, version: str, *, as_sent: bool = False) -> bytes:
        """Return the definition as this version's JSON; `as_sent` keeps the server's schema if it is sound."""
        if as_sent and self.repairs and combines_only_at_root(self.input_schema):
            return encode(tool_for_version({**self.definition, "inputSchema": self.input_schema}, version))
        if version not in self._json:
            self._json[version] = encode(tool_for_version(self.definition, version))
        return self._json[version]

    @property
    def description(self) -> str:
        """Return the upstream's description, or an empty text."""
        return str(self.definition.get("description") or "")

    @property
    def title(self) -> str:
        """Return the display name, from `title` or the annotations."""
        annotations = self.definition.get("annotations") or {}
        return str(self.definition.get("title") or annotations.get("title") or "")

    @cached_property
    def effect(self) -> Effect:
        """Return the effect of its calls, from the annotations."""
        return effect_of(self.definition.get("annotations"))

    @cached_property
    def idempotent(self) -> bool:
        """Return True if a call may be repeated without harm, from the annotations."""
        return is_idempotent(self.definition.get("annotations"))

    @property
    def source(self) -> str:
        """Return the upstream and its own tool name, as patterns and messages write it."""
        return f"{self.upstream_id}:{self.name}"


@dataclass(frozen=True, eq=False)
class Catalog:
    """All tools in catalog order (servers as configured, tools as the server lists them), and all other offers.

    They include what servers list for some clients only; `visibility` says for which clients it does not exist.
    """

    tools: tuple[CatalogTool, ...] = ()
    upstream_ids: tuple[str, ...] = ()
    assignments: Mapping[tuple[str, str], str] = field(default_factory=lambda: MappingProxyType({}))
    former: Mapping[tuple[str, str], Sequence[str]] = field(default_factory=lambda: MappingProxyType({}))
    offers: OfferTable = field(default_factory=OfferTable)
    visibility: Visibility = field(default_factory=Visibility)
    ownership: Ownership = field(default_factory=Ownership)
    held: Catalog | None = None
    """The tools that are held back, as they were accepted; used only for answers that say so."""

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """Return positions in `tools` by qualified name."""
        return {tool.qualified_name: position for position, tool in enumerate(self.tools)}

    @cached_property
    def _by_former_name(self) -> Mapping[str, CatalogTool | None]:
        """Return renamed tools by former name; None if it could be one of several."""
        found: dict[str, CatalogTool | None] = {}
        for tool in self.tools:
            for name in tool.former_names:
                found[name] = None if name in found else tool
        return found

    @cached_property
    def own_names(self) -> Mapping[str, Sequence[CatalogTool]]:
        """Return tools by the names that their servers use."""
        found: dict[str, list[CatalogTool]] = {}
        for tool in self.tools:
            found.setdefault(tool.name, []).append(tool)
        return found

    @cached_property
    def own_words(self) -> Mapping[tuple[str, ...], Sequence[CatalogTool]]:
        """Return tools by the words of the names that their servers use."""
        found: dict[tuple[str, ...], list[CatalogTool]] = {}
        for tool in self.tools:
            found.setdefault(words_of(tool.name), []).append(tool)
        return found

    @cached_property
    def listed_upstreams(self) -> frozenset[str]:
        """Return the upstreams that have a tool here."""
        return frozenset(tool.upstream_id for tool in self.tools)

    @cached_property
    def fingerprint(self) -> str:
        """Return a hash of everything about tools that a client can observe, except staleness."""
        digest = hashlib.sha256()
        for tool in self.tools:
            digest.update(_observed(tool).encode())
        return digest.hexdigest()[:16]

    def owned(self, upstream_id: str, name: str) -> CatalogTool | None:
        """Return the tool by the name that this server uses."""
        return self.by_name(self.assignments.get((upstream_id, name), ""))

    @property
    def held_names(self) -> tuple[str, ...]:
        """Return the qualified names of the tools that are held back."""
        return () if self.held is None else tuple(self.held.positions)

    def shows_the_same(self, other: Catalog) -> bool:
        """Return True if no client could tell this snapshot from the other."""
        if (self.upstream_ids, self.assignments, self.former, self.visibility, self.ownership) != (
            other.upstream_ids,
            other.assignments,
            other.former,
            other.visibility,
            other.ownership,
        ):
            return False
        if self.offers.fingerprint != other.offers.fingerprint or self.held_names != other.held_names:
            return False
        return len(self.tools) == len(other.tools) and all(
            ours is theirs
            or (
                (ours.stale, ours.hidden, ours.reach) == (theirs.stale, theirs.hidden, theirs.reach)
                and _observed(ours) == _observed(theirs)
            )
            for ours, theirs in zip(self.tools, other.tools, strict=True)
        )

    def by_name(self, qualified_name: str) -> CatalogTool | None:
        """Return the tool with exactly this qualified name."""
        position = self.positions.get(qualified_name)
        return None if position is None else self.tools[position]

    def by_former_name(self, name: str) -> CatalogTool | None:
        """Return the tool that had this name and has another now."""
        return self._by_former_name.get(name)


def _observed(tool: CatalogTool) -> str:
    # The original schema decides which arguments are refused, so clients can observe it as well.
    original = None if tool.input_schema is tool.definition["inputSchema"] else tool.input_schema
    return json.dumps([tool.upstream_id, tool.name, tool.definition, original], sort_keys=True)
