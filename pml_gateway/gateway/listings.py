"""The last listing of every upstream, kept in the manifest between starts; the catalog is built from it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from urllib.parse import quote

from pml_gateway.catalog.apps import without_apps
from pml_gateway.catalog.build import Prefix, build_catalog
from pml_gateway.catalog.manifest import Manifest, ManifestEntry, ManifestFile, manifest_document
from pml_gateway.catalog.model import Catalog, UpstreamListing
from pml_gateway.catalog.prompts_and_resources import OfferTable, build_offers
from pml_gateway.catalog.public_uris import with_public_meta
from pml_gateway.catalog.shared_names import SharedNames
from pml_gateway.catalog.visibility import Variants, build_visibility
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.settings import EffectiveSettings, NamingSettings, Settings
from pml_gateway.exposure.meta_tool import RESERVED
from pml_gateway.gateway.state import composites_of
from pml_gateway.log import get_logger
from pml_gateway.mcp.capabilities import APPS
from pml_gateway.mcp.listing import Difference, Listed, Offers, RememberedListing, with_more
from pml_gateway.policy.principal import LOCAL
from pml_gateway.policy.view import View
from pml_gateway.storage.places import MANIFEST, warn_unwritable
from pml_gateway.storage.shared_documents import SharedDocuments
from pml_gateway.storage.single_flight_cache import ById, SingleFlightCache
from pml_gateway.trust.identity import is_identical
from pml_gateway.trust.trust_gate import TrustGate
from pml_gateway.types import JsonObject
from pml_gateway.workflow.composite import (
    composite_listing,
    hidden_steps,
    ownership_of,
    read_composites,
    with_composites,
)
from pml_gateway.workflow.plan import limits_of

logger = get_logger(__name__)

Manifests = Callable[[Prefix], ManifestFile]
"""The manifest of one way of naming."""

MAX_DIFFERENCES = 32
"""Sets of capabilities of which an upstream's listing is kept; the oldest go first."""


class Listings:
    """The listings of one gateway; each holds for as long as its upstream is defined as it was."""

    def __init__(
        self,
        manifests: Manifests,
        naming: NamingSettings,
        trust_gate: TrustGate,
        read: SingleFlightCache[Manifest],
        built: SingleFlightCache[Catalog],
        documents: SharedDocuments | None = None,
    ) -> None:
        """Read the listings on disk.

        Args:
            manifests: where they lie.
            naming: how tools are named now.
            trust_gate: decides what of them may be served.
            read: manifests that other gateways of this process have read.
            built: catalogs that other gateways of this process have built.
            documents: what replicas have in common, if this configuration is that of several.
        """
        self._manifests = manifests
        self._built = built
        self._documents = documents
        self._shared_names: dict[Prefix, SharedNames] = {}
        self._file = manifests(naming.prefix)
        self._saved = read.get(self._file.identity, self._file.load)
        manifest = self._saved
        self._entries = dict(manifest.entries)
        self._current: Mapping[str, ManifestEntry] = {}
        """Those that the last catalog was built from."""
        self.trust_gate = trust_gate
        trust_gate.remember(self._entries)
        self.first_names = Catalog(
            assignments=manifest.names, former=manifest.former_names, offers=OfferTable(names=manifest.offer_names)
        )
        """A catalog without tools that knows the names given before this start."""

    @property
    def path(self) -> Path:
        """The manifest's file."""
        return self._file.path

    def keep_under(self, naming: NamingSettings) -> None:
        """Save into the manifest of another way of naming from now on."""
        self._file = self._manifests(naming.prefix)
        self._saved = Manifest()

    def take(self, upstream_id: str, definition: UpstreamDefinition, listed: Listed) -> None:
        """Take over what an upstream listed just now."""
        before, fingerprint = self._entries.get(upstream_id), definition.fingerprint()
        may_differ = before is not None and before.fingerprint == fingerprint and listed.era == before.era
        self._entries[upstream_id] = ManifestEntry(
            fingerprint=fingerprint,
            tools=listed.tools,
            listed_at=listed.listed_at,
            era=listed.era,
            server_name=listed.server_name,
            server_version=listed.server_version,
            offers=listed.offers,
            differences=before.differences if before is not None and may_differ else {},
            asks=listed.asks,
            version=listed.version,
        )

    def knows(self, upstream_id: str, definition: UpstreamDefinition, listed: Listed) -> bool:
        """Return True if this equals the upstream's known listing."""
        entry = self._entries.get(upstream_id)
        return (
            entry is not None
            and entry.fingerprint == definition.fingerprint()
            and (entry.era, entry.version) == (listed.era, listed.version)
            and (entry.tools, entry.offers) == (listed.tools, listed.offers)
        )

    def listed_at(self, upstream_id: str, definition: UpstreamDefinition) -> float | None:
        """Return when an upstream was last listed, or None."""
        entry = self._entries.get(upstream_id)
        is_known = entry is not None and entry.fingerprint == definition.fingerprint()
        return entry.listed_at if entry is not None and is_known else None

    def differences(self, upstream_id: str, settings: Settings) -> Mapping[str, Difference]:
        """Return an upstream's further listings by client capabilities."""
        entry, definition = self._entries.get(upstream_id), settings.servers.get(upstream_id)
        if entry is None or definition is None or entry.fingerprint != definition.fingerprint():
            return {}
        return entry.differences

    def take_difference(self, upstream_id: str, client_capabilities: str, difference: Difference) -> bool:
        """Take over what an upstream lists besides for clients of these capabilities; whether that is new."""
        entry = self._entries[upstream_id]
        if entry.differences.get(client_capabilities) == difference:
            return False
        others = {key: each for key, each in entry.differences.items() if key != client_capabilities}
        kept = dict(list(others.items())[1 - MAX_DIFFERENCES :])
        self._entries[upstream_id] = replace(entry, differences={**kept, client_capabilities: difference})
        return True

    def remembered(self, settings: Settings) -> dict[str, RememberedListing]:
        """Return the remembered listing of each upstream whose definition is unchanged."""
        return {
            upstream_id: RememberedListing(entry.era, entry.tools, entry.offers, entry.asks, entry.version)
            for upstream_id, entry in self._entries.items()
            if upstream_id in settings.servers and entry.fingerprint == settings.servers[upstream_id].fingerprint()
        }

    def catalog(
        self, settings: Settings, previous: Catalog, failed: frozenset[str], *, keeps_names: bool = True
    ) -> Catalog:
        """Return the catalog for `settings`; may block: call it in a thread.

        Args:
            settings: which servers and workflows there are, and how tools are named.
            previous: the catalog before, from which what did not change is taken.
            failed: the upstreams whose tools are stale.
            keeps_names: whether tools keep the names they have in `previous`.
        """
        known = Manifest({}, previous.assignments, previous.offers.names, previous.former)
        if previous.upstream_ids:
            self._take_up(settings.servers.keys() - previous.upstream_ids - self._entries.keys())
        current: dict[str, ManifestEntry] = {}
        for upstream_id, definition in settings.servers.items():
            entry = self._entries.get(upstream_id)
            if definition.enabled and entry is not None and entry.fingerprint == definition.fingerprint():
                current[upstream_id] = _as_before(entry, self._current.get(upstream_id))
        self._current = current
        admitted = self.trust_gate.admit(current, settings.servers, settings.trust)
        if not keeps_names:
            known = replace(known, names={}, former_names={})
        held, held_skills = self.trust_gate.held_back, self.trust_gate.held_skills

        def build(known: Manifest) -> Catalog:
            key = (
                (settings.servers, settings.naming, settings.workflows, settings.workflow),
                [(upstream_id, _told(entry)) for upstream_id, entry in admitted.items()],
                failed & settings.servers.keys(),
                (known.names, known.former_names, known.offer_names),
                held,
                held_skills,
            )
            return self._built.get(
                key, partial(_catalog, settings, admitted, failed, known, previous, held, held_skills)
            )

        catalog = build(known)
        if (names := self._names(settings.naming.prefix)) is not None:
            catalog = _with_names_of_all(catalog, known, names, build)
        _warn(catalog.offers, previous.offers)
        return catalog

    def _names(self, prefix: Prefix) -> SharedNames | None:
        """Return the names that replicas agree on under a prefix setting."""
        if self._documents is not None and prefix not in self._shared_names:
            file = manifest_document(self._manifests(prefix).path.with_suffix(".names.json"))
            self._shared_names[prefix] = SharedNames(self._documents, f"names-{prefix}", file)
        return self._shared_names.get(prefix)

    def _take_up(self, added: Collection[str]) -> None:
        """Take over what the manifest says of servers that were not configured at the start: one may be renamed."""
        saved = self._file.load().entries if added else {}
        self._entries |= {upstream_id: saved[upstream_id] for upstream_id in saved.keys() & added}

    def saving(self, catalog: Catalog) -> Callable[[], None]:
        """Return a function that writes the current manifest, from which the next start knows tools and names."""
        entries = {key: entry for key, entry in self._entries.items() if key in catalog.upstream_ids}
        manifest = Manifest(entries, catalog.assignments, catalog.offers.names, catalog.former)
        return partial(self._save, manifest, catalog.upstream_ids)

    def _save(self, manifest: Manifest, configured: Collection[str]) -> None:
        if manifest.is_covered_by(self._saved) and self._file.path.exists():
            return
        try:
            self._file.save(manifest, configured=configured)
            self._saved = manifest
        except OSError as error:
            warn_unwritable(MANIFEST, self.path.parent, error)
        except ValueError as error:
            logger.warning("manifest not saved (%s); the next start will have to ask every upstream", error)


def _as_before(entry: ManifestEntry, before: ManifestEntry | None) -> ManifestEntry:
    """Return the entry with unchanged parts replaced by the previous objects, of which all is known."""
    if before is None or before is entry:
        return entry
    offers = before.offers if is_identical(_said(before.offers), _said(entry.offers)) else entry.offers
    return replace(entry, tools=_kept(before.tools, entry.tools), offers=offers)


def _kept(before: tuple[JsonObject, ...], now: tuple[JsonObject, ...]) -> tuple[JsonObject, ...]:
    known = {str(tool.get("name")): tool for tool in before}
    kept = tuple(
        same if (same := known.get(str(tool.get("name")))) is not None and is_identical(same, tool) else tool
        for tool in now
    )
    is_as_before = len(kept) == len(before) and all(map(operator.is_, kept, before))
    return before if is_as_before else kept


def _said(offers: Offers) -> object:
    return [getattr(offers, each.name) for each in fields(offers)]


def _with_names_of_all(
    catalog: Catalog, known: Manifest, names: SharedNames, build: Callable[[Manifest], Catalog]
) -> Catalog:
    """Return the catalog with the names that all replicas have; built anew if they are others."""
    mine = Manifest(names=catalog.assignments, offer_names=catalog.offers.names)
    agreed = names.agreed(mine, catalog.ownership.ids)
    if agreed is mine:
        return catalog
    former = dict(known.former_names)
    for owner, name in known.names.items():
        if agreed.names.get(owner, name) != name:
            former[owner] = (*former.get(owner, ()), name)
    catalog = build(replace(agreed, former_names=former))
    rebuilt = Manifest(names=catalog.assignments, offer_names=catalog.offers.names)
    names.agreed(rebuilt, catalog.ownership.ids, refused=agreed)
    return catalog


def _told(entry: ManifestEntry) -> tuple[object, ...]:
    """Equal for what a server has told in the very same objects."""
    differences = [(capabilities, ById(each)) for capabilities, each in entry.differences.items()]
    return ById(entry.tools), ById(entry.offers), differences


def _catalog(
    settings: Settings,
    admitted: Mapping[str, ManifestEntry],
    failed: frozenset[str],
    known: Manifest,
    previous: Catalog,
    held: Mapping[str, tuple[JsonObject, ...]],
    held_skills: frozenset[tuple[str, str]],
) -> Catalog:
    """Return the catalog of what is admitted.

    Args:
        settings: which servers and workflows there are, and how tools are named.
        admitted: what the servers list.
        failed: the upstreams whose tools are stale.
        known: the names that are kept.
        previous: where what did not change is taken from.
        held: tools that are held back, as they were accepted.
        held_skills: skills of which no file is read, by server id and URI.
    """
    listings = []
    offers: dict[str, Offers | None] = {}
    variants: dict[str, Variants] = {}
    for upstream_id, definition in settings.servers.items():
        if not definition.enabled:
            continue
        entry = admitted.get(upstream_id)
        tools: tuple[JsonObject, ...] = ()
        offers[upstream_id] = None
        if entry is not None:
            entry = _as_configured(entry, EffectiveSettings(upstream_id, definition, settings.upstreams))
            tools, offers[upstream_id] = with_more(entry.tools, entry.offers, entry.differences.values())
            variants[upstream_id] = Variants(entry.tools, entry.offers, entry.differences)
        listings.append(UpstreamListing(upstream_id, tools, stale=upstream_id in failed))
    workflows = composite_listing(read_composites(settings.workflows, limits_of(settings.workflow)))
    catalog = build_catalog(
        [*listings, workflows] if workflows is not None else listings,
        prefix=settings.naming.prefix,
        max_length=settings.naming.max_length,
        reserved=RESERVED,
        earlier=known.names,
        former=known.former_names,
        previous=previous,
        ownership=ownership_of(settings.servers),
    )
    # Without workflows as well: tools that one kept off the lists are taken over from the catalog before.
    catalog = with_composites(catalog, composites_of(settings, catalog), previous)
    table = replace(build_offers(offers, known.offer_names, catalog.ownership), held_skills=held_skills)
    catalog = replace(catalog, offers=table, visibility=build_visibility(variants))
    return with_public_meta(replace(catalog, held=_held(settings, held, catalog) if held else None), previous)


def _held(settings: Settings, held: Mapping[str, tuple[JsonObject, ...]], catalog: Catalog) -> Catalog:
    """Return a catalog of the tools that are held back, under the names that they have in the one that is served."""
    listings = [
        UpstreamListing(upstream_id, tuple(filter(None, map(definition.as_configured, tools))))
        for upstream_id, tools in held.items()
        if (definition := settings.servers.get(upstream_id)) is not None and definition.enabled
    ]
    built = build_catalog(
        listings,
        prefix=settings.naming.prefix,
        max_length=settings.naming.max_length,
        reserved=RESERVED | catalog.positions.keys(),
        earlier=catalog.assignments,
        former=catalog.former,
        ownership=catalog.ownership,
    )
    # A step that keeps a tool off every list names one that is not there now.
    everything = View(built, LOCAL, ())
    composites = read_composites(settings.workflows, limits_of(settings.workflow))
    hidden = {everything.resolve(name) for name in hidden_steps(composites)}
    return replace(built, tools=tuple(replace(tool, hidden=tool in hidden) for tool in built.tools))


def _as_configured(entry: ManifestEntry, effective: EffectiveSettings) -> ManifestEntry:
    """Return an entry with the tools as their owner wants them: without those that are switched off."""
    definition, has_apps = effective.definition, APPS not in effective.denied_extensions
    if has_apps and not definition.changes_tools:
        return entry

    def wanted(tools: tuple[JsonObject, ...]) -> tuple[JsonObject, ...]:
        given = tools if has_apps else tuple(filter(None, map(without_apps, tools)))
        return tuple(tool for each in given if (tool := definition.as_configured(each)) is not None)

    differences = {key: replace(each, tools=wanted(each.tools)) for key, each in entry.differences.items()}
    return replace(entry, tools=wanted(entry.tools), differences=differences)


def _warn(table: OfferTable, previous: OfferTable) -> None:
    """Say which servers list what another one's template covers, once for each pair."""
    known = {(claim.upstream_id, claim.owner_id) for claim in previous.claims}
    new = {(claim.upstream_id, claim.owner_id): claim for claim in table.claims}
    for pair, claim in new.items():
        if pair not in known:
            logger.warning(
                "server %s lists %s, which %s of server %s covers; what %s has there is reached as pml://%s/URI only",
                claim.upstream_id,
                ascii(claim.uri[:200]),
                ascii(claim.template[:200]),
                claim.owner_id,
                claim.upstream_id,
                quote(claim.upstream_id, safe=""),
            )


def shapes_catalog(settings: Settings) -> tuple[object, ...]:
    """Return the settings that decide what a catalog contains, and under which names."""
    return (
        settings.servers,
        settings.upstreams.extensions,
        settings.naming,
        settings.workflows,
        settings.workflow,
        settings.trust,
    )
