"""What the upstreams behind a client's view can do becomes what the gateway announces to it."""

from __future__ import annotations

from pml_gateway.catalog.offers import OfferKind
from pml_gateway.policy.view import View
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.differences import TOOLS

MAX_SERVER_INSTRUCTIONS = 2_000
MAX_INSTRUCTIONS = 8_000
"""Characters of instructions passed on, per server and in all: clients put them before every conversation."""

OFFERED = ("prompts", "resources", "completions")
"""The capabilities that depend on the upstreams."""

OWN_INSTRUCTIONS = (
    "A gateway to many MCP servers. Tools that are not listed are found with search_tools, whose answers say how to "
    "call them."
)


def offered_capabilities(view: View) -> JsonObject:
    """The capabilities beside tools: what a visible upstream has, or may have while nothing is known of it."""
    upstreams = view.said
    unknown = any(said is None and view.offers.may_permit(upstream_id) for upstream_id, said in upstreams.items())
    seen = [said for upstream_id, said in upstreams.items() if said is not None and is_seen(view, upstream_id)]
    capabilities: JsonObject = {}
    if unknown or any(said.has_prompts for said in seen):
        capabilities["prompts"] = {"listChanged": True}
    if unknown or any(said.has_resources for said in seen):
        capabilities["resources"] = {"subscribe": unknown or any(said.subscribes for said in seen), "listChanged": True}
    if unknown or any(said.completes for said in seen):
        capabilities["completions"] = {}
    return capabilities


def is_seen(view: View, upstream_id: str) -> bool:
    """Whether the client sees anything of an upstream, or would of one that has nothing."""
    if upstream_id in view.servers or upstream_id in view.offers.upstream_ids:
        return True
    catalog = view.catalog
    own = [(upstream_id, TOOLS, tool.name) for tool in catalog.tools if tool.upstream_id == upstream_id]
    own += [
        (upstream_id, kind, offer.name)
        for kind in OfferKind
        for offer in catalog.offers.of_kind(kind)
        if offer.upstream_id == upstream_id
    ]
    has_any = any(named not in view.absent for named in own)
    return not has_any and view.offers.permits(upstream_id, "")


def gathered_instructions(view: View) -> str:
    """The gateway's own instructions and those of the servers this client sees, in their order, within limits."""
    parts = [OWN_INSTRUCTIONS]
    left = MAX_INSTRUCTIONS
    for upstream_id, said in view.said.items():
        text = said.instructions.strip() if said is not None else ""
        if not text or left <= 0 or not is_seen(view, upstream_id):
            continue
        kept = text[: min(left, MAX_SERVER_INSTRUCTIONS)]
        left -= len(kept)
        parts.append(f"## {upstream_id}\n{kept}{'' if kept == text else ' [...]'}")
    return "\n\n".join(parts)
