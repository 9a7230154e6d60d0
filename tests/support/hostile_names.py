"""Configurations in which one server calls its tools and prompts as if they were another's, and what must hold there.

The same cases come from Hypothesis (`CASES`) and, by the million, from any random numbers (`make_case`); `faults` says
what is wrong with one. Whose a name is decides `owner_of` here, word by word, and not the code under test.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from random import Random
from typing import get_args

from hypothesis import strategies as st

from pml_gateway.catalog.build import Prefix, build_catalog
from pml_gateway.catalog.model import Catalog, CatalogTool, UpstreamListing
from pml_gateway.catalog.ownership import Ownership
from pml_gateway.catalog.prompts_and_resources import OfferKind, build_offers
from pml_gateway.config.settings import NamespaceSettings
from pml_gateway.exposure.grouping import group
from pml_gateway.exposure.meta_tool import RESERVED
from pml_gateway.exposure.patterns import compile_grants, compile_patterns
from pml_gateway.gateway.state import documents
from pml_gateway.mcp.listing import Offers
from pml_gateway.policy.principal import LOCAL
from pml_gateway.policy.view import View
from pml_gateway.workflow.composite import COMPOSITES, ownership_of
from tests.support.principals import principal

SERVERS = (
    *("github", "github__ent", "github_", "GitHub", "git", "mcp", "mcp__github", "my server", "my.server", "my_server"),
    *("fs", "a", "a__b", "a.b", "a:b", "é", "__", "search", "call", "x" * 70),
)
TOOLS = ("create_issue", "create-issue", "read", "b__c", "server__read", "fs", "_x", "search", "call_tool", "y" * 80)
SEPARATORS = (":", "/", ".", "__")
GLOBS = ("*", "*:*", "*__*", "*:read", "git*", "r*", "*_issue", "[g]ithub__*", "?*__create*")


@dataclass(frozen=True)
class Case:
    """Configured servers with what those that are enabled list, one of them hostile; and how tools are named."""

    listed: Mapping[str, Sequence[str]]
    disabled: tuple[str, ...] = ()
    silent: frozenset[str] = frozenset()
    prefix: Prefix = "always"
    max_length: int = 64
    earlier: Mapping[tuple[str, str], str] = field(default_factory=dict)
    rules: tuple[str, ...] = ()
    spoken: tuple[str, ...] = ()

    @property
    def servers(self) -> tuple[str, ...]:
        """Every configured id."""
        return (*self.listed, *self.disabled)

    @property
    def ownership(self) -> Ownership:
        """As the gateway takes it from its configuration."""
        return ownership_of(self.servers)

    def catalog(self) -> Catalog:
        """The catalog of those that are not silent."""
        listings = [
            UpstreamListing(server, () if server in self.silent else tuple(map(_tool, names)))
            for server, names in self.listed.items()
        ]
        return build_catalog(
            listings,
            prefix=self.prefix,
            max_length=self.max_length,
            reserved=RESERVED,
            earlier=self.earlier,
            ownership=self.ownership,
        )


def owner_of(name: str, servers: Sequence[str], *, with_id: bool = True) -> str | None:
    """The server whose id a name begins with, the longest that fits; `with_id`, also of the id alone.

    Of spellings that are as long, the exact one wins, and then the first server.
    """
    ids = (*servers, COMPOSITES)
    spelled = [(server, server, name) for server in ids]
    for write in (str, _legal):
        spelled += [(write(server).casefold(), server, name.casefold()) for server in ids]
    best, length = None, -1
    for before in ("", "mcp__"):
        for start, server, said in spelled:
            whole = f"{before}{start}"
            is_begun = said.startswith(tuple(f"{whole}{separator}" for separator in SEPARATORS))
            if (is_begun or (with_id and said == whole)) and len(whole) > length:
                best, length = server, len(whole)
    return best


def faults(case: Case) -> list[str]:
    """What of a case lets one server have what is another's; nothing where all is well."""
    return list(_faults(case))


def _faults(case: Case) -> Iterator[str]:
    catalog, servers = case.catalog(), case.servers

    def is_stolen(name: str, upstream_id: str) -> bool:
        owner = owner_of(name, servers)
        return owner is not None and owner != upstream_id

    for tool in catalog.tools:
        if is_stolen(tool.qualified_name, tool.upstream_id) or tool.qualified_name in RESERVED:
            yield f"{tool.source} is listed as {tool.qualified_name}"
    for document, tool in zip(documents(catalog.tools, case.ownership), catalog.tools, strict=True):
        if is_stolen(document.name, tool.upstream_id):
            yield f"a search for {document.name} finds {tool.source} by its name"
    names = set(called_names(case))
    hidden = (principal("c", allow=("*",), deny=tuple(f"{server}:*" for server in servers[:1])), LOCAL)
    for client in hidden:
        view = View(catalog, client, ())
        groups = group(
            view.tools, NamespaceSettings(groups={"all": ("*",)}), taken=view.names, ownership=case.ownership
        )
        for name in names:
            found = view.resolve(name)
            if found is not None and (name in RESERVED or is_stolen(name, found.upstream_id)):
                yield f"a call of {name} reaches {found.source}"
            for suggested in view.closest(name, 1):
                meant = catalog.by_name(suggested)
                if meant is not None and is_stolen(meant.name, meant.upstream_id):
                    yield f"a call of {name} is led to {meant.source}"
            for namespace in groups.values():
                action = namespace.find(name)
                if action is not None and is_stolen(name, namespace.actions[action].upstream_id):
                    yield f"the action {name} of {namespace.name} reaches {namespace.actions[action].source}"
    offers = build_offers(
        {server: Offers(prompts=tuple({"name": name} for name in named)) for server, named in case.listed.items()},
        {OfferKind.PROMPT: case.earlier},
        case.ownership,
    )
    for offer in offers.of_kind(OfferKind.PROMPT):
        if is_stolen(offer.public, offer.upstream_id):
            yield f"the prompt {offer.name} of {offer.upstream_id} is listed as {offer.public}"
    yield from _rule_faults(case, catalog)


def _rule_faults(case: Case, catalog: Catalog) -> Iterator[str]:
    # Also those of the limit that names had at first.
    names_before = [_names_before(case, longest) for longest in {case.max_length, 64}]
    for entry in case.rules:
        literal = re.split(r"[*?\[]", entry.strip())[0]
        named = owner_of(literal, case.servers, with_id=False)
        owner = None if named is None else owner_of(literal, case.servers)
        granted, denied = compile_grants([entry], case.ownership), compile_patterns([entry])
        for tool in catalog.tools:
            if granted.admits(tool):
                if owner not in (None, tool.upstream_id):
                    yield f"{entry} is about {owner} and admits {tool.source}"
                if len(case.servers) > 1 and entry.strip() != "*" and not _by_its_server(entry, tool, case):
                    yield f"{entry} admits {tool.source} by a name that its server chose"
            owner_before = (tool.upstream_id, tool.name)
            old = [tool.source, *(before[owner_before] for before in names_before if owner_before in before)]
            was_denied = any(name == entry.strip() or fnmatchcase(name, entry.strip()) for name in old)
            if was_denied and not denied.matches(tool):
                yield f"{entry} denied {tool.source} when it was called {old[1:]}"


def _by_its_server(entry: str, tool: CatalogTool, case: Case) -> bool:
    """Whether an entry fits a name of the tool that begins with its own server's id."""
    names = (tool.source, f"{tool.upstream_id}__{tool.name}", tool.qualified_name, *tool.former_names)
    certain = [name for name in names if owner_of(name, case.servers) == tool.upstream_id]
    return any(name == entry.strip() or fnmatchcase(name, entry.strip()) for name in certain)


def called_names(case: Case) -> Iterator[str]:
    """Every way to say every name of a case."""
    tools = {name for names in case.listed.values() for name in names}
    for server in case.servers:
        yield server
        for name in tools:
            for start in ("", "mcp__"):
                for separator in SEPARATORS:
                    yield f"{start}{server}{separator}{name}"
    yield from tools
    yield from case.spoken
    yield from case.earlier.values()
    yield from RESERVED


def make_case(random: Random) -> Case:
    """One case; equal random numbers give equal cases."""
    servers = random.sample(SERVERS, random.randint(1, 5))
    hostile = servers[0]
    others = servers[1:] or [random.choice(SERVERS)]
    listed: dict[str, list[str]] = {}
    disabled = []
    for server in sorted(servers, key=lambda _: random.random()):
        if server != hostile and random.random() < 0.25:
            disabled.append(server)
            continue
        names = random.sample(TOOLS, random.randint(0, 4))
        if server == hostile:
            names += [impersonation(random, random.choice(others)) for _ in range(random.randint(1, 4))]
        listed[server] = list(dict.fromkeys(names))
    silent = frozenset(server for server in listed if server != hostile and random.random() < 0.25)
    prefix = random.choice(get_args(Prefix))
    # As an earlier version may have named them, under the same way of naming.
    named = {(hostile, name): (f"{hostile}__{name}", name) for name in listed[hostile][::2]}
    choices = {"always": (0,), "on_collision": (0, 1), "never": (1,)}[prefix]
    earlier = {owner: names[random.choice(choices)] for owner, names in named.items()}
    rules = tuple(_rule(random, servers, listed[hostile]) for _ in range(random.randint(0, 4)))
    spoken = tuple(impersonation(random, random.choice(servers)) for _ in range(3))
    max_length = random.choice((64, 52, 24))
    return Case(listed, tuple(disabled), silent, prefix, max_length, earlier, rules, spoken)


CASES = st.randoms(use_true_random=False).map(make_case)
"""Cases for Hypothesis."""


def impersonation(random: Random, victim: str) -> str:
    """A name that a server would give its own tool to be taken for the victim's."""
    written = random.choice((victim, victim, _legal(victim), victim.upper(), victim.capitalize(), victim[:-1]))
    separator = random.choice((*SEPARATORS, *SEPARATORS, "_", "___", "-", ""))
    tool = random.choice((*TOOLS, "steal", ""))
    return f"{random.choice(('', '', '', 'mcp__', 'mcp_', 'mcp__mcp__'))}{written}{separator}{tool}"


def _rule(random: Random, servers: Sequence[str], hostile: Sequence[str]) -> str:
    server, name = random.choice(servers), random.choice((*TOOLS, *hostile))
    start = f"{random.choice((server, server, _legal(server)))}{random.choice((':', '__'))}"
    return random.choice(
        (
            *GLOBS,
            name,
            f"{start}{name}",
            f"{start}*",
            f"{start}{name[:3]}*",
            f"{server}*",
            f"{name[:4]}*",
            f" {start}* ",
        )
    )


def _tool(name: str) -> dict[str, object]:
    return {"name": name, "inputSchema": {"type": "object", "properties": {}}}


def _legal(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]", "_", text)


def _names_before(case: Case, longest: int) -> dict[tuple[str, str], str]:
    """The names that tools had when servers could take another's: the earlier one, or the first free one asked for."""
    listed = [(server, name) for server, names in case.listed.items() if server not in case.silent for name in names]
    earlier = {owner: name for owner, name in case.earlier.items() if re.fullmatch(r"[\w-]+", name, re.ASCII)}
    earlier = {owner: name for owner, name in earlier.items() if len(name) <= longest}
    given: dict[tuple[str, str], str] = {}
    for owner, name in earlier.items():
        if name not in given.values() and name not in _META_TOOLS:
            given[owner] = name
    for owner in listed:
        if owner not in given:
            candidates = _old_candidates(owner, case.prefix, longest)
            given[owner] = next(each for each in candidates if each not in {*given.values(), *_META_TOOLS})
    return given


_META_TOOLS = frozenset(
    ("search_tools", "tool_schema", "call_tool", "call_batch", "execute_workflow", "read_result", "gateway_info")
)


def _old_candidates(owner: tuple[str, str], prefix: Prefix, max_length: int) -> Iterator[str]:
    prefixed = "__".join(owner)
    wanted = {"always": [prefixed], "on_collision": [owner[1], prefixed], "never": [owner[1]]}[prefix]

    def hashed(text: str, salt: str) -> str:
        digest = hashlib.sha256("\0".join((*owner, salt)).encode("utf-8", "surrogatepass")).hexdigest()[:8]
        return f"{text[: max_length - 9]}_{digest}"

    for name in wanted:
        cleaned = _legal(name) or "unnamed"
        yield cleaned if len(cleaned) <= max_length else hashed(cleaned, "")
    for attempt in range(1000):
        yield hashed(_legal(wanted[-1]) or "unnamed", str(attempt))
