"""The view of one client on the catalog, which alone decides what exists for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pml_gateway.catalog.hidden_characters import visible
from pml_gateway.catalog.model import Catalog, CatalogTool
from pml_gateway.catalog.ownership import CLIENT_PREFIX
from pml_gateway.catalog.prompts_and_resources import Offer, OfferKind
from pml_gateway.catalog.visibility import absent_offers, absent_tools
from pml_gateway.config.settings import CALLS_BY_EFFECT
from pml_gateway.exposure.meta_tool import RESERVED
from pml_gateway.exposure.patterns import compile_patterns
from pml_gateway.exposure.vocabulary import CALL_TOOL
from pml_gateway.mcp.listing import TOOLS
from pml_gateway.policy.principal import Principal
from pml_gateway.policy.prompts_and_resources import OfferView
from pml_gateway.policy.rules import HidingRule
from pml_gateway.text import LIKENESS, folded, likenesses, words_of
from pml_gateway.types import Effect, strongest

BARE_LIKENESS = 0.75
"""Minimum likeness of names without their server, which are shorter, and more alike by chance."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A tool outside a client's view, the rule, and the entry of it that matched."""

    tool: CatalogTool
    rule: HidingRule
    pattern: str | None = None


class View:
    """The tools that one client may see and call.

    Listing, search, schema, call, closest names and counts all use this object, so that a hidden tool cannot be
    distinguished from one that does not exist. `inside` a composite tool, its hidden tools exist as well, and those of
    user interfaces exist `for_apps` alone. Offers of a
    server that require other client capabilities do not exist for this client, and neither do composite tools that
    could reach a step which it may not call.
    """

    def __init__(
        self,
        catalog: Catalog,
        client: Principal,
        blacklist: Sequence[str],
        *,
        inside: bool = False,
        for_apps: bool = False,
    ) -> None:
        allow, servers = client.rules.compiled(catalog.ownership), catalog.ownership.ids
        deny, denied = compile_patterns(client.rules.deny, servers), compile_patterns(blacklist, servers)
        absent = catalog.visibility.absent_for(client.client_capabilities)
        self.catalog = catalog
        self.client = client
        self.inside = inside
        self.for_apps = for_apps
        self._held = None if catalog.held is None else View(catalog.held, client, blacklist)
        self.absent = absent
        self.offers = OfferView(catalog.offers, allow, (deny, denied), absent_offers(absent))
        self.said = {**catalog.offers.upstreams, **catalog.visibility.said.get(client.client_capabilities, {})}
        self._unlisted = absent_tools(absent)
        self._allow = allow
        self._deny, self._blacklist = deny, denied
        self._blacklisted = blacklist
        self._denied_meta_tools = client.rules.denied_meta_tools
        self._shown: dict[CatalogTool, bool] = {}
        self.hides_nothing = allow.matches_all and not (deny.names_any or denied.names_any)
        """True if no rule hides anything, so that its client may know the names of what is missing."""
        self._is_whole = self.hides_nothing and not self._unlisted

    def shows(self, tool: CatalogTool) -> bool:
        """Return True if a tool of the catalog exists for this client."""
        if (tool.hidden and not self.inside) or tool.app_only is not self.for_apps:
            return False
        if self._is_whole:
            return True
        shown = self._shown.get(tool)
        if shown is None:
            shown = self._shown[tool] = self._permits(tool)
        return shown

    def _permits(self, tool: CatalogTool) -> bool:
        return next(self.withheld(tool), None) is None if tool.reach else self._admits(tool)

    def exclusion(self, tool: CatalogTool) -> Exclusion | None:
        """Return why a tool of the catalog does not exist for this client. For the owner, never the client."""
        for rule, entries in (
            (HidingRule.BLACKLISTED, self._blacklisted),
            (HidingRule.DENIED, self.client.rules.deny),
        ):
            servers = self.catalog.ownership.ids
            pattern = next((entry for entry in entries if compile_patterns([entry], servers).matches(tool)), None)
            if pattern is not None:
                return Exclusion(tool, rule, pattern)
        if not self._allow.admits(tool):
            is_given = self._allow.admits(tool, of_any_effect=True)
            return Exclusion(tool, HidingRule.EFFECT if is_given else HidingRule.NOT_ALLOWED)
        if tool.hidden and not self.inside:
            return Exclusion(tool, HidingRule.HIDDEN)
        if tool.app_only is not self.for_apps:
            return Exclusion(tool, HidingRule.APPS)
        if (tool.upstream_id, tool.name) in self._unlisted:
            return Exclusion(tool, HidingRule.CAPABILITIES)
        return None if self.shows(tool) else Exclusion(tool, HidingRule.REACH)

    def withheld(self, tool: CatalogTool) -> Iterator[CatalogTool]:
        """Yield the tools that this client may not use, among a tool and those that it could reach."""
        yield from (each for each in (tool, *self._called(tool.reach)) if not self._admits(each))

    def _admits(self, tool: CatalogTool) -> bool:
        is_offered = (tool.upstream_id, tool.name) not in self._unlisted and not self._blacklist.matches(tool)
        return is_offered and self._allow.admits(tool) and not self._deny.matches(tool)

    def _called(self, names: frozenset[str]) -> Iterator[CatalogTool]:
        return (tool for name in sorted(names) if (tool := self.catalog.by_name(name)) is not None)

    def has_meta_tool(self, name: str) -> bool:
        """Return True if this client may use the meta-tool of this name and its aliases, if there is one.

        A client without `call_tool` has none of those that call tools up to an effect.
        """
        return not self._denied_meta_tools.matches_any((name, *((CALL_TOOL,) if name in CALLS_BY_EFFECT else ())))

    @cached_property
    def effect(self) -> Effect:
        """Return the strongest effect of the visible tools; an unknown one may be any."""
        return strongest(tool.effect for tool in self.tools)

    @cached_property
    def tools(self) -> tuple[CatalogTool, ...]:
        """Return the visible tools, in catalog order. Checks every tool, so resolving a single name does not use it."""
        return tuple(tool for tool in self.catalog.tools if self.shows(tool))

    @cached_property
    def names(self) -> frozenset[str]:
        """Return the qualified names of the visible tools."""
        return frozenset(tool.qualified_name for tool in self.tools)

    @cached_property
    def skills(self) -> dict[str, Offer]:
        """Return the visible skills by the URI of their SKILL.md, in catalog order."""
        return {skill.public: skill for skill in self.offers.listed(OfferKind.SKILL)}

    @cached_property
    def skilled_servers(self) -> dict[str, int]:
        """Return the number of visible skills per upstream, without upstreams that have none."""
        return dict(Counter(skill.upstream_id for skill in self.skills.values()))

    @cached_property
    def mask(self) -> npt.NDArray[np.bool_]:
        """Return the mask of visible tools over catalog positions, shape (tools,), for the search index."""
        mask = np.zeros(len(self.catalog.tools), dtype=np.bool_)
        mask[[self.catalog.positions[tool.qualified_name] for tool in self.tools]] = True
        return mask

    @cached_property
    def servers(self) -> dict[str, int]:
        """Return the number of visible tools per upstream, in configuration order, without upstreams that have none."""
        counts: dict[str, int] = {}
        for tool in self.tools:
            counts[tool.upstream_id] = counts.get(tool.upstream_id, 0) + 1
        return counts

    def sees_all_of(self, upstream_id: str) -> bool:
        """Return True if no rule hides anything of an upstream; otherwise even its name is hidden until it lists."""
        if not self._allow.gives_all_of(upstream_id):
            return False
        rules = (self._deny, self._blacklist)
        return not any(patterns.may_be_about(upstream_id, self.catalog.ownership) for patterns in rules)

    def may_have_tools_of(self, upstream_id: str) -> bool:
        """Return True if the client may see tools of an upstream whose lists are not known."""
        return self._allow.may_admit(upstream_id) or self._allow.matches_all

    def sees_any_of(self, upstream_id: str) -> bool:
        """Return True if the client sees anything of an upstream, or would if the upstream had anything."""
        if upstream_id in self.servers or upstream_id in self.offers.upstream_ids:
            return True
        own = [(upstream_id, TOOLS, tool.name) for tool in self.catalog.tools if tool.upstream_id == upstream_id]
        own += [
            (upstream_id, kind, offer.name)
            for kind in OfferKind
            for offer in self.catalog.offers.of_kind(kind)
            if offer.upstream_id == upstream_id
        ]
        has_any = any(named not in self.absent for named in own)
        return not has_any and self.offers.permits(upstream_id, "")

    @cached_property
    def instructions(self) -> dict[str, str]:
        """Return the instructions of the servers of which the client sees anything, in order."""
        texts = {server: visible(said.instructions).strip() for server, said in self.said.items() if said is not None}
        return {server: text for server, text in texts.items() if text and self.sees_any_of(server)}

    def holds_back(self, name: str) -> bool:
        """Return True if the tool of this name is held back, and these rules would show it."""
        return self._held is not None and self._held.resolve(name) is not None

    def resolve(self, name: str) -> CatalogTool | None:
        """Return the visible tool of this name: qualified, `server:tool` and its spellings, or bare when unambiguous.

        A slash before it is ignored (`/server/tool`), and so are prefixes that clients add to tool names
        (`mcp__pml__server__tool`), and case and separators if only one tool can be meant.

        A name that begins with a configured server's id refers to a tool of that server, or none.
        """
        tool = self._named(name)
        if tool is None and name.startswith("/"):
            tool = self._named(name[1:])
        if tool is None and self.catalog.ownership.claim(name) is None:
            # The name that the client gave the gateway is not a server's here.
            _, separator, behind = name.removeprefix(CLIENT_PREFIX).partition("__")
            tool = self._named(behind) if separator and name.startswith(CLIENT_PREFIX) else None
        return tool or self._respelled(name)

    def _respelled(self, name: str) -> CatalogTool | None:
        """Return the only visible tool with this name in another case or with other separators (`listIssues`).

        Names are compared word by word, so that no server can name a tool to be mistaken for another's: a name that
        begins with the words of a configured server's id belongs to that server.
        """
        words, ownership = words_of(name), self.catalog.ownership
        if not words or "_".join(words) in RESERVED:
            return None
        owners, rest = ownership.spoken(words)
        named = [*self.catalog.own_words.get(words, ()), *(self.catalog.own_words.get(rest, ()) if owners else ())]
        claim = ownership.claim(name)
        allowed = owners if claim is None else owners & {claim.upstream_id}
        if not owners and claim is None:
            candidates = {tool for tool in named if self.shows(tool) and ownership.allows(tool.name, tool.upstream_id)}
        else:
            candidates = {tool for tool in named if tool.upstream_id in allowed and self.shows(tool)}
        return candidates.pop() if len(candidates) == 1 and len(owners) < 2 else None

    def listed(self, name: str) -> CatalogTool | None:
        """Return the visible tool that has this qualified name, or had it."""
        tool = self.catalog.by_name(name) or self.catalog.by_former_name(name)
        return tool if tool is not None and self.shows(tool) else None

    def namesakes(self, own_name: str) -> list[CatalogTool]:
        """Return the visible tools that their servers name so; none for a name that belongs to one server."""
        if own_name in RESERVED or self.catalog.ownership.claim(own_name) is not None:
            return []
        return [tool for tool in self.catalog.own_names.get(own_name, ()) if self.shows(tool)]

    def _named(self, name: str) -> CatalogTool | None:
        tool = self.listed(name)
        if tool is not None or name in RESERVED:
            return tool
        claim = self.catalog.ownership.claim(name)
        if claim is None:
            candidates = self.namesakes(name)
            return candidates[0] if len(candidates) == 1 else None
        for own_name in (claim.own_name, name):
            tool = None if own_name is None else self.catalog.owned(claim.upstream_id, own_name)
            if tool is not None and self.shows(tool):
                return tool
        return None

    def closest(self, name: str, limit: int = 3) -> list[str]:
        """Return the visible names most similar to `name`, best first."""
        asked = folded(name)
        scored: dict[str, float] = {}
        for spellings, likeness in ((self._qualified_spellings, LIKENESS), (self._bare_spellings, BARE_LIKENESS)):
            for qualified_name, score in likenesses(asked, spellings, count=limit, likeness=likeness).items():
                scored[qualified_name] = max(score, scored.get(qualified_name, 0.0))
        return sorted(scored, key=lambda candidate: (-scored[candidate], candidate))[:limit]

    @cached_property
    def _suggested(self) -> tuple[CatalogTool, ...]:
        """Return the visible tools, except those named like another server's: a typo must not lead to them."""
        allows = self.catalog.ownership.allows
        return tuple(tool for tool in self.tools if allows(tool.name, tool.upstream_id))

    @cached_property
    def _qualified_spellings(self) -> dict[str, str]:
        return {tool.qualified_name: folded(tool.qualified_name) for tool in self._suggested}

    @cached_property
    def _bare_spellings(self) -> dict[str, str]:
        return {tool.qualified_name: folded(tool.name) for tool in self._suggested}
