"""Construction of the catalog from upstream listings: tools are named and repaired, none is dropped for its form."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Literal, NamedTuple

from pml_gateway.catalog.apps import is_app_only
from pml_gateway.catalog.fields import HIDDEN, sound_fields
from pml_gateway.catalog.hidden_characters import visible_schema
from pml_gateway.catalog.keywords import is_plain
from pml_gateway.catalog.model import EXAMPLES, Catalog, CatalogTool, UpstreamListing
from pml_gateway.catalog.ownership import ILLEGAL, Ownership
from pml_gateway.catalog.schema import check_output_schema, is_flawless, read_input_schema
from pml_gateway.types import JsonObject

Prefix = Literal["always", "on_collision", "never"]

SEPARATOR = "__"

LONGEST_BEFORE = 64
"""Former default for the maximum length of names; rules and prompts may still contain names of this length."""

MAX_FORMER = 4
"""Maximum number of former names that a tool keeps; the oldest are dropped first."""

Owner = tuple[str, str]
"""A server's id, and that server's own name for its tool."""

_SEPARATED = re.compile(r"_{2,}")
_HASH_LENGTH = 8


def assign_names(
    tools: Iterable[tuple[str, str]],
    *,
    prefix: Prefix,
    max_length: int,
    reserved: frozenset[str],
    earlier: Mapping[tuple[str, str], str],
    ownership: Ownership,
    former: Mapping[tuple[str, str], Sequence[str]] = MappingProxyType({}),
) -> dict[tuple[str, str], str]:
    """Give every (upstream id, tool name) a qualified name.

    An owner keeps the name given earlier, so a new server never renames another's tools; a new tool takes the first
    free one of its candidates, in catalog order. An earlier name is replaced if it is no longer legal, belongs to
    another server, or was cut by a lower limit. A former name of a tool is never given to another tool.
    """
    wanted = list(dict.fromkeys(tools))
    kept: dict[str, tuple[str, str]] = {}
    had: dict[str, Owner] = {}
    for owner, name in earlier.items():
        if not ownership.allows(name, owner[0]):
            continue
        had.setdefault(name, owner)
        if name not in reserved and _is_legal(name, max_length) and not _was_cut(owner, name, prefix, max_length):
            kept.setdefault(name, owner)
    for owner, names in former.items():
        for name in names:
            if ownership.allows(name, owner[0]):
                had.setdefault(name, owner)
    assigned = {owner: earlier[owner] for owner in wanted if kept.get(earlier.get(owner, "")) == owner}
    taken = kept.keys() | reserved
    for owner in wanted:
        if owner in assigned:
            continue
        candidates = _candidates(owner, prefix, max_length, reserved, ownership)
        name = next(
            name
            for name in candidates
            if name not in taken and had.get(name, owner) == owner and ownership.allows(name, owner[0])
        )
        assigned[owner] = name
        taken.add(name)
    return assigned


def _plain(owner: tuple[str, str], prefix: Prefix) -> list[str]:
    """Return the names that a prefix setting wants for a tool; they need not be legal."""
    upstream_id, tool_name = owner
    prefixed = f"{upstream_id}{SEPARATOR}{tool_name}"
    match prefix:
        case "always":
            return [prefixed]
        case "on_collision":
            return [tool_name, prefixed]
        case "never":
            return [tool_name]


def _candidates(
    owner: tuple[str, str], prefix: Prefix, max_length: int, reserved: frozenset[str], ownership: Ownership
) -> Iterable[str]:
    plain = _plain(owner, prefix)
    names = [legal_name(name, owner, max_length) for name in plain]
    if prefix == "never" and (names[0] in reserved or not ownership.allows(names[0], owner[0])):
        # The plain name is reserved or another server's; only this server's own id makes it unambiguous.
        plain += _plain(owner, "always")
        names.append(legal_name(plain[-1], owner, max_length))
    yield from names
    last = _clean(plain[-1])
    if not ownership.allows(_with_hash(last, owner, max_length, salt="0"), owner[0]):
        # Without a separator, the name no longer begins with another server's id.
        last = _SEPARATED.sub("_", last)[: max_length - _HASH_LENGTH - 1].rstrip("_")
    for attempt in range(1000):
        yield _with_hash(last, owner, max_length, salt=str(attempt))


def _refused_names(
    owner: tuple[str, str], given: str, prefix: Prefix, max_length: int, reserved: frozenset[str], ownership: Ownership
) -> tuple[str, ...]:
    """Return names that the tool would have if they were not another's; rules against the tool may use them."""
    plain = _plain(owner, prefix)
    if given == legal_name(plain[0], owner, max_length):
        return ()
    found: list[str] = []
    for longest in dict.fromkeys((max_length, LONGEST_BEFORE)):
        wanted = [legal_name(name, owner, longest) for name in plain]
        refused = [name for name in wanted if name in reserved or not ownership.allows(name, owner[0])]
        hashed = _with_hash(_clean(plain[-1]), owner, longest, salt="0")
        if refused or not ownership.allows(hashed, owner[0]):
            refused.append(hashed)
        found += refused
    return tuple(name for name in dict.fromkeys(found) if name != given)


def _former_names(
    names: Mapping[Owner, str],
    earlier: Mapping[Owner, str],
    former: Mapping[Owner, Sequence[str]],
    reserved: frozenset[str],
    ownership: Ownership,
) -> dict[Owner, tuple[str, ...]]:
    """Return the former names of tools, including tools that may come back."""
    taken = {*names.values(), *reserved}
    found: dict[Owner, tuple[str, ...]] = {}
    renamed = {owner: name for owner, name in earlier.items() if names.get(owner, name) != name}
    for owner in dict.fromkeys((*former, *renamed)):
        before = [*former.get(owner, ())]
        if owner in renamed:
            before.append(renamed[owner])
        kept = [
            name
            for name in dict.fromkeys(before)
            if name not in taken and not ILLEGAL.search(name) and ownership.allows(name, owner[0])
        ]
        if kept:
            found[owner] = tuple(kept[-MAX_FORMER:])
            taken.update(found[owner])
    return found


def _names_before(owner: Owner, prefix: Prefix, max_length: int, reserved: frozenset[str]) -> list[str]:
    """Return the former names of a tool with a long name, as far as its own name determines them."""
    if max_length >= LONGEST_BEFORE or sum(map(len, owner)) + len(SEPARATOR) <= max_length:
        return []
    names = [legal_name(name, owner, LONGEST_BEFORE) for name in _plain(owner, prefix) if len(name) > max_length]
    return [name for name in names if name not in reserved]


def _was_cut(owner: Owner, name: str, prefix: Prefix, max_length: int) -> bool:
    """Return True if a name was cut under a lower limit than the current one."""
    if len(name) >= max_length or name[-_HASH_LENGTH - 1 : -_HASH_LENGTH] != "_":
        return False
    return any(
        len(plain) > len(name) and name == _with_hash(_clean(plain), owner, len(name), salt="")
        for plain in _plain(owner, prefix)
    )


def legal_name(name: str, owner: tuple[str, str], max_length: int) -> str:
    """Return `name` within the legal characters and length; a shortened one ends in a hash of its owner."""
    cleaned = _clean(name)
    return cleaned if len(cleaned) <= max_length else _with_hash(cleaned, owner, max_length, salt="")


def _is_legal(name: str, max_length: int) -> bool:
    return 0 < len(name) <= max_length and not ILLEGAL.search(name)


def _clean(name: str) -> str:
    return ILLEGAL.sub("_", name) or "unnamed"


def _with_hash(cleaned: str, owner: tuple[str, str], max_length: int, *, salt: str) -> str:
    digest = hashlib.sha256("\0".join((*owner, salt)).encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LENGTH]
    return f"{cleaned[: max_length - _HASH_LENGTH - 1]}_{digest}"


def build_catalog(
    listings: Sequence[UpstreamListing],
    *,
    prefix: Prefix = "always",
    max_length: int = LONGEST_BEFORE,
    reserved: frozenset[str] = frozenset(),
    earlier: Mapping[tuple[str, str], str] | None = None,
    former: Mapping[tuple[str, str], Sequence[str]] | None = None,
    previous: Catalog | None = None,
    ownership: Ownership | None = None,
) -> Catalog:
    """Build the snapshot for these listings, in their order.

    Args:
        listings: one per configured upstream; an upstream that never answered has no tools yet.
        prefix: when a name carries its server id.
        max_length: characters a qualified name may have.
        reserved: names no tool may take (the meta-tools' own).
        earlier: names given in earlier builds, which their owners keep.
        former: names that tools had before those; tools can still be called by them.
        previous: the catalog before this one; its unchanged tools are reused, and a definition that is the same
            object is not repaired again.
        ownership: the configured servers, including those without a listing; by default the listed ones.
    """
    ownership = ownership or Ownership(tuple(listing.upstream_id for listing in listings))
    configured = ownership.ids
    kept = {owner: name for owner, name in (earlier or {}).items() if owner[0] in configured}
    owners = [(listing.upstream_id, _name(tool)) for listing in listings for tool in listing.tools]
    kept_former = {owner: names for owner, names in (former or {}).items() if owner[0] in configured}
    names = assign_names(
        owners,
        prefix=prefix,
        max_length=max_length,
        reserved=reserved,
        earlier=kept,
        ownership=ownership,
        former=kept_former,
    )
    had = _former_names(names, kept, kept_former, reserved, ownership)
    had_by = {name: owner for owner, own in had.items() for name in own}
    known = {} if previous is None else {(tool.upstream_id, tool.name): tool for tool in previous.tools}
    tools: list[CatalogTool] = []
    listed: set[str] = set()
    for listing in listings:
        for raw in listing.tools:
            owner = (listing.upstream_id, _name(raw))
            qualified_name = names[owner]
            if qualified_name in listed:
                continue
            listed.add(qualified_name)
            before = [*had.get(owner, ()), *_names_before(owner, prefix, max_length, reserved)]
            former_names = [
                name
                for name in dict.fromkeys(before)
                if name != qualified_name and had_by.get(name, owner) == owner and ownership.allows(name, owner[0])
            ]
            tool_names = _Names(
                qualified_name,
                _refused_names(owner, qualified_name, prefix, max_length, reserved, ownership),
                tuple(former_names),
            )
            tools.append(_build_tool(raw, tool_names, listing, known.get(owner)))
    return Catalog(
        tools=tuple(tools),
        upstream_ids=tuple(listing.upstream_id for listing in listings),
        assignments=MappingProxyType(_kept_assignments(kept, names)),
        former=MappingProxyType(had),
        ownership=ownership,
    )


def _kept_assignments(
    earlier: Mapping[tuple[str, str], str], names: Mapping[tuple[str, str], str]
) -> dict[tuple[str, str], str]:
    """Return the current names, and those of tools that may come back; an owner that lost its earlier name frees it."""
    given = set(names.values())
    gone = {owner: name for owner, name in earlier.items() if owner not in names and name not in given}
    return gone | dict(names)


class _Names(NamedTuple):
    """The name of a tool, the names that it is refused, and its former names."""

    qualified: str
    refused: tuple[str, ...]
    former: tuple[str, ...]


def _build_tool(raw: JsonObject, names: _Names, listing: UpstreamListing, known: CatalogTool | None) -> CatalogTool:
    if known is not None and known.listed is raw:
        return _taken_over(known, names, stale=listing.stale)
    name, qualified_name = _name(raw), names.qualified
    given = raw.get("inputSchema")
    if is_flawless(given):
        checked, input_schema, shown, repairs = given, given, given, tuple[str, ...]()
    else:
        understood, input_schema, repairs = read_input_schema(given)
        checked = _checked_schema(understood, input_schema)
        shown = visible_schema(input_schema)
    output_schema, output_repairs = check_output_schema(raw.get("outputSchema"))
    fields, dropped = sound_fields(raw)
    definition: JsonObject = {"name": qualified_name, **fields, "inputSchema": shown}
    if output_schema is not None:
        definition["outputSchema"] = visible_schema(output_schema)
    for key, schema in (("inputSchema", input_schema), ("outputSchema", output_schema)):
        if schema is not None and definition[key] is not schema:
            dropped.append(f"{key}: {HIDDEN}")
    tool = CatalogTool(
        qualified_name=qualified_name,
        upstream_id=listing.upstream_id,
        name=name,
        definition=definition,
        input_schema=checked,
        repairs=(*repairs, *output_repairs, *dropped, *_renamed(listing.upstream_id, name, qualified_name)),
        stale=listing.stale,
        app_only=is_app_only(fields),
        task_only=fields.get("execution", {}).get("taskSupport") == "required",
        listed=raw,
        refused_names=names.refused,
        former_names=names.former,
    )
    return known if known is not None and same_tool(known, tool) else tool


def _taken_over(known: CatalogTool, names: _Names, *, stale: bool) -> CatalogTool:
    """Return a tool with an unchanged definition under its current name."""
    qualified_name = names.qualified
    if (known.qualified_name, known.refused_names, known.former_names) == names and known.stale == stale:
        return known
    own = len(known.repairs) - len(_renamed(known.upstream_id, known.name, known.qualified_name))
    return replace(
        known,
        qualified_name=qualified_name,
        definition={**known.definition, "name": qualified_name},
        repairs=(*known.repairs[:own], *_renamed(known.upstream_id, known.name, qualified_name)),
        stale=stale,
        refused_names=names.refused,
        former_names=names.former,
    )


def _renamed(upstream_id: str, name: str, qualified_name: str) -> tuple[str, ...]:
    """Return the reason why a tool was renamed, if it was."""
    if qualified_name in (name, f"{upstream_id}{SEPARATOR}{name}"):
        return ()
    return (f"name: {name!r} is listed as {qualified_name!r}",)


def _checked_schema(original: JsonObject | None, repaired: JsonObject) -> JsonObject:
    """Return the schema that checks arguments: the original, unless it refuses every object or is nested too deep."""
    if original is None or original is repaired or not is_plain(original):
        return repaired
    kind = original.get("type", "object")
    return original if kind == "object" or (isinstance(kind, list) and "object" in kind) else repaired


def same_tool(known: CatalogTool, tool: CatalogTool) -> bool:
    """Return True if a tool did not change, down to the JSON of its definition."""
    return (
        (known.upstream_id, known.name, known.stale, known.hidden, known.repairs, known.reach)
        == (tool.upstream_id, tool.name, tool.stale, tool.hidden, tool.repairs, tool.reach)
        and (known.refused_names, known.former_names) == (tool.refused_names, tool.former_names)
        and known.definition == tool.definition
        and known.input_schema == tool.input_schema
        and all(known.listed.get(key) == tool.listed.get(key) for key in EXAMPLES)
        # In Python 1, 1.0 and true are equal; in JSON they are not.
        and _canonical(known) == _canonical(tool)
    )


def _canonical(tool: CatalogTool) -> str:
    return json.dumps([tool.definition, tool.input_schema], sort_keys=True)


def _name(tool: JsonObject) -> str:
    return str(tool.get("name") or "")
