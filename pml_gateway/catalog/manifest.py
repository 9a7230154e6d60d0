"""The manifest: every upstream's last good listing and all names given, on disk, shared by gateway processes."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from pml_gateway.catalog.build import MAX_FORMER, Prefix
from pml_gateway.catalog.ownership import Ownership
from pml_gateway.catalog.prompts_and_resources import OfferKind, OfferNames, split_public_uri
from pml_gateway.mcp.capabilities import ServerCapabilities
from pml_gateway.mcp.listing import Difference, Offers
from pml_gateway.storage import kinds
from pml_gateway.storage.documents import Document, compact, parsed
from pml_gateway.types import JsonObject

LOCK_SECONDS = 5.0
"""Seconds to wait for the lock; a gateway can do without the write."""

LISTED_AGAIN_SECONDS = 60.0
"""Seconds after which an identical listing is worth a write: without a gateway, `pml status` reads from the manifest
when a server was last seen."""

FORMAT = 1

Given = TypeVar("Given")


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """The last answer of one upstream: its listing, its time (Unix seconds), and the protocol that it speaks.

    `version` is the older protocol version that it accepted after refusing the latest; empty if it takes the latest.
    `differences` are by the capabilities of clients; `asks` are the capabilities that it has used to ask a client.
    """

    fingerprint: str
    tools: tuple[JsonObject, ...]
    listed_at: float
    era: str = ""
    server_name: str = ""
    server_version: str = ""
    offers: Offers = field(default_factory=Offers)
    differences: Mapping[str, Difference] = field(default_factory=dict)
    asks: frozenset[str] = frozenset()
    version: str = ""

    def is_covered_by(self, other: ManifestEntry) -> bool:
        """Return True if the two differ at most in their times, by up to LISTED_AGAIN_SECONDS."""
        is_late = self.listed_at > other.listed_at + LISTED_AGAIN_SECONDS
        return not is_late and self == replace(other, listed_at=self.listed_at)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything the gateway needs to answer before any upstream is up."""

    entries: Mapping[str, ManifestEntry] = field(default_factory=dict)
    names: Mapping[tuple[str, str], str] = field(default_factory=dict)
    offer_names: Mapping[OfferKind, OfferNames] = field(default_factory=dict)
    former_names: Mapping[tuple[str, str], Sequence[str]] = field(default_factory=dict)
    """Former names of renamed tools, by which they can still be called."""

    def is_covered_by(self, other: Manifest) -> bool:
        """Return True if a saved manifest need not be written again: only the times differ, and by little."""
        return (
            (self.names, self.offer_names, self.former_names) == (other.names, other.offer_names, other.former_names)
            and self.entries.keys() == other.entries.keys()
            and all(entry.is_covered_by(other.entries[key]) for key, entry in self.entries.items())
        )

    def names_beginning_with(self, upstream_id: str) -> dict[str, str]:
        """Return a server's current and former tool names that begin with its id, each with the server's own name."""
        given = [(owner, [name]) for owner, name in self.names.items()]
        return {
            name: own
            for (owner, own), names in (*self.former_names.items(), *given)
            for name in names
            if owner == upstream_id and _begins_with(upstream_id, name)
        }

    def copied(self, upstream_id: str, to: str) -> Manifest:
        """Return the manifest with one server's data also under another id, except names that begin with its id."""
        if upstream_id not in self.entries:
            return self
        return replace(
            self,
            entries={**self.entries, to: self.entries[upstream_id]},
            names=_copied(self.names, upstream_id, to),
            offer_names={kind: _copied(names, upstream_id, to) for kind, names in self.offer_names.items()},
            former_names={owner: names for owner, names in self.former_names.items() if owner[0] != to},
        )


def _begins_with(upstream_id: str, name: str) -> bool:
    """Return True if a name, or the URI of a resource, begins with the server's id."""
    return Ownership((upstream_id,)).claim(name) is not None or split_public_uri(name)[0] == upstream_id


def _copied(names: Mapping[tuple[str, str], str], upstream_id: str, to: str) -> dict[tuple[str, str], str]:
    copies = {
        (to, own): name
        for (owner, own), name in names.items()
        if owner == upstream_id and not _begins_with(upstream_id, name)
    }
    return {owner: name for owner, name in names.items() if owner[0] != to} | copies


class ManifestFile:
    """The manifest file of one configuration; every write merges with what other processes wrote.

    Names depend on the prefix setting, so each setting has a file of its own.
    """

    def __init__(self, directory: Path, identity: str, prefix: Prefix) -> None:
        digest = hashlib.sha256(f"{identity}\0{prefix}".encode()).hexdigest()[:16]
        self._document = manifest_document(directory / f"{digest}.json")

    @property
    def path(self) -> Path:
        """Return the path of the manifest."""
        return self._document.path

    @property
    def identity(self) -> tuple[object, ...]:
        """Return a value that stays equal as long as `load` returns the same."""
        return self.path, self._document.signature

    def load(self) -> Manifest:
        """Return the manifest on disk; an absent or damaged one is empty."""
        return self._document.read()

    def copy(self, upstream_id: str, to: str) -> None:
        """Save a copy of one server's data under another id.

        Raises:
            OSError: the file cannot be written.
        """
        with self._document.locked():
            known = self.load()
            if (copied := known.copied(upstream_id, to)) is not known:
                self._document.write(copied)

    def save(self, manifest: Manifest, *, configured: Collection[str] | None = None) -> Manifest:
        """Write the manifest; per upstream the newest listing wins, per tool the first name given.

        Args:
            manifest: what this process knows.
            configured: upstreams whose listings and names by other processes are kept; by default those in `manifest`.
        """
        kept = frozenset(manifest.entries if configured is None else configured) | manifest.entries.keys()
        with self._document.locked():
            on_disk = self.load()
            entries = dict(manifest.entries)
            others = dict(on_disk.entries)
            on_disk = replace(on_disk, entries={})
            for upstream_id in list(others):
                # Freed one by one: freeing all at once would keep other threads waiting.
                other = others.pop(upstream_id)
                mine = entries.get(upstream_id)
                if mine is None:
                    newest = upstream_id in kept
                else:
                    newest = mine.fingerprint == other.fingerprint and other.listed_at > mine.listed_at
                if newest:
                    entries[upstream_id] = other if mine is None else _known_more(other, mine)
                elif mine is not None and mine.fingerprint == other.fingerprint and other.asks - mine.asks:
                    entries[upstream_id] = replace(mine, asks=other.asks | mine.asks)
            offer_names = {
                kind: _merge_names(manifest.offer_names.get(kind, {}), on_disk.offer_names.get(kind, {}), kept)
                for kind in OfferKind
                if kind in manifest.offer_names or kind in on_disk.offer_names
            }
            renamed = manifest.former_names
            theirs = {owner: name for owner, name in on_disk.names.items() if name not in renamed.get(owner, ())}
            names = _merge_names(manifest.names, theirs, kept)
            former = _merge_former(renamed, on_disk.former_names, names)
            merged = Manifest(entries, names, offer_names, former)
            self._document.write(merged)
        return merged


def manifest_document(path: Path) -> Document[Manifest]:
    """Return a document with a manifest."""
    return Document(kinds.MANIFEST, path, decode=_decode, encode=_written, empty=Manifest, lock_seconds=LOCK_SECONDS)


def _known_more(newest: ManifestEntry, older: ManifestEntry) -> ManifestEntry:
    """Add what an older entry knows of differences: a process of one client lists for it alone, and finds none."""
    return replace(newest, differences=newest.differences or older.differences, asks=newest.asks | older.asks)


def _merge_former(
    mine: Mapping[tuple[str, str], Sequence[str]],
    theirs: Mapping[tuple[str, str], Sequence[str]],
    names: Mapping[tuple[str, str], str],
) -> dict[tuple[str, str], tuple[str, ...]]:
    merged = {
        owner: [name for name in (*theirs.get(owner, ()), *mine.get(owner, ())) if name != names[owner]]
        for owner in dict.fromkeys((*theirs, *mine))
        if owner in names
    }
    return {owner: tuple(dict.fromkeys(former))[-MAX_FORMER:] for owner, former in merged.items() if former}


def _merge_names(
    mine: Mapping[tuple[str, str], str], theirs: Mapping[tuple[str, str], str], upstream_ids: frozenset[str]
) -> dict[tuple[str, str], str]:
    merged = {owner: name for owner, name in theirs.items() if owner[0] in upstream_ids}
    taken = set(merged.values())
    for owner, name in mine.items():
        if owner not in merged and name not in taken:
            merged[owner] = name
            taken.add(name)
    return merged


def _written(manifest: Manifest) -> str:
    """Return the manifest as JSON, made in pieces: at once, a large one would keep every other thread waiting."""
    offer_names = {str(kind): _nested(names) for kind, names in manifest.offer_names.items()}
    parts = {
        "format": compact(FORMAT),
        "names": _object({upstream_id: compact(names) for upstream_id, names in _nested(manifest.names).items()}),
        "offer_names": compact(offer_names),
        "former_names": compact(_nested(manifest.former_names)),
        "upstreams": _object({upstream_id: _entry(entry) for upstream_id, entry in manifest.entries.items()}),
    }
    return _object(parts)


def _entry(entry: ManifestEntry) -> str:
    parts = {
        "fingerprint": compact(entry.fingerprint),
        "tools": f"[{','.join([compact(tool) for tool in entry.tools])}]",
        "listed_at": compact(entry.listed_at),
        "era": compact(entry.era),
        "server": compact([entry.server_name, entry.server_version]),
        "offers": compact(asdict(entry.offers)),
        "differences": compact({key: asdict(each) for key, each in entry.differences.items()}),
        "asks": compact(sorted(entry.asks)),
        "version": compact(entry.version),
    }
    return _object(parts)


def _object(parts: Mapping[str, str]) -> str:
    return f"{{{','.join([f'{compact(key)}:{part}' for key, part in parts.items()])}}}"


def _nested(names: Mapping[tuple[str, str], Given]) -> dict[str, dict[str, Given]]:
    nested: dict[str, dict[str, Given]] = {}
    for (upstream_id, own), name in names.items():
        nested.setdefault(upstream_id, {})[own] = name
    return nested


def _flat(nested: JsonObject) -> dict[tuple[str, str], str]:
    return {(upstream_id, own): _text(name) for upstream_id, names in nested.items() for own, name in names.items()}


def _decode(content: bytes) -> Manifest:
    raw = parsed(content, FORMAT)
    entries = {
        upstream_id: ManifestEntry(
            fingerprint=_text(entry["fingerprint"]),
            tools=tuple(tool for tool in entry["tools"] if isinstance(tool, dict)),
            listed_at=float(entry["listed_at"]),
            era=_text(entry["era"]),
            server_name=_text(entry["server"][0]),
            server_version=_text(entry["server"][1]),
            offers=_decode_offers(entry.get("offers", {})),
            differences={key: _decode_difference(each) for key, each in entry.get("differences", {}).items()},
            asks=frozenset(map(_text, entry.get("asks", ()))),
            version=_text(entry.get("version", "")),
        )
        for upstream_id, entry in raw["upstreams"].items()
    }
    # Manifests from before offers were stored contain only tools.
    offer_names = {OfferKind(kind): _flat(nested) for kind, nested in raw.get("offer_names", {}).items()}
    former = {
        (upstream_id, own): tuple(map(_text, names))
        for upstream_id, former_names in raw.get("former_names", {}).items()
        for own, names in former_names.items()
    }
    return Manifest(entries, _flat(raw["names"]), offer_names, former)


def _decode_offers(raw: JsonObject) -> Offers:
    def listed(key: str) -> tuple[JsonObject, ...]:
        return tuple(each for each in raw.get(key, ()) if isinstance(each, dict))

    declared = raw.get("capabilities", {}).get("declared", {})
    return Offers(
        prompts=listed("prompts"),
        resources=listed("resources"),
        templates=listed("templates"),
        skills=listed("skills"),
        instructions=_text(raw.get("instructions", "")),
        capabilities=ServerCapabilities({name: dict(parts) for name, parts in declared.items()}),
    )


def _decode_difference(raw: JsonObject) -> Difference:
    return Difference(
        tools=tuple(tool for tool in raw["tools"] if isinstance(tool, dict)),
        offers=_decode_offers(raw["offers"]),
        missing=tuple((_text(kind), _text(name)) for kind, name in raw["missing"]),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} where a string belongs")
    return value
