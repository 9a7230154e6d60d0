"""The manifest: every upstream's last good listing and all names given, on disk, shared by gateway processes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from pml_gateway.catalog.build import LONGEST_BEFORE, MAX_FORMER
from pml_gateway.catalog.ownership import Ownership
from pml_gateway.catalog.prompts_and_resources import OfferKind, OfferNames, split_public_uri
from pml_gateway.files import locked, read_json, signature, write_atomically
from pml_gateway.log import get_logger
from pml_gateway.mcp.listing import Difference, Offers
from pml_gateway.types import JsonObject

logger = get_logger(__name__)

LOCK_SECONDS = 5.0
"""Seconds to wait for the lock; a gateway can do without the write."""

LISTED_AGAIN_SECONDS = 600.0
"""Seconds after which an identical listing of a server is worth a write."""

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

    def says_no_more_than(self, other: ManifestEntry) -> bool:
        """Return True if this equals the other, except that the server was asked at most a little later."""
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
    is_pinned: bool = True
    """True if a gateway that pins definitions wrote it; earlier versions did not pin."""

    def says_no_more_than(self, other: Manifest) -> bool:
        """Return True if this equals the other, except that servers were asked at most a little later."""
        return (
            (self.names, self.offer_names, self.former_names, self.is_pinned)
            == (other.names, other.offer_names, other.former_names, other.is_pinned)
            and self.entries.keys() == other.entries.keys()
            and all(entry.says_no_more_than(other.entries[key]) for key, entry in self.entries.items())
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


def _path(directory: Path, identity: str) -> Path:
    return directory / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"


class ManifestFile:
    """The manifest file of one configuration; every write merges with what other processes wrote."""

    def __init__(self, directory: Path, identity: str, *, before: str = "") -> None:
        """Choose the file of an identity; while it does not exist, the file of `before` is read instead.

        Args:
            directory: the folder of manifests.
            identity: a text that identifies the configuration.
            before: the identity of the same configuration in an earlier version.
        """
        self._path = _path(directory, identity)
        self._before = _path(directory, before) if before else self._path

    @classmethod
    def of(cls, directory: Path, configuration: str, prefix: str, max_length: int) -> ManifestFile:
        """Return the manifest file of a configuration. Names depend on the prefix setting, so each setting has its own.

        Earlier versions also had one for each length limit; the file of the first default limit now serves all limits.
        """
        same = f"{configuration}\0{prefix}\0"
        return cls(directory, f"{same}{LONGEST_BEFORE}", before=f"{same}{max_length}")

    @property
    def path(self) -> Path:
        """Return the path of the manifest."""
        return self._path

    @property
    def identity(self) -> tuple[object, ...]:
        """Return a value that stays equal as long as `load` returns the same."""
        return self._path, *map(signature, (self._path, self._before))

    def load(self) -> Manifest:
        """Return the manifest on disk; an absent or damaged one is empty."""
        try:
            raw = read_json(self._path if self._path.exists() else self._before)
            return _decode(raw) if raw.get("format") == FORMAT else Manifest()
        except (FileNotFoundError, NotADirectoryError):
            return Manifest()
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            logger.warning("manifest %s is unreadable (%s); starting without it", self._path, error)
            return Manifest()

    def copy(self, upstream_id: str, to: str) -> None:
        """Save a copy of one server's data under another id.

        Raises:
            OSError: the file cannot be written.
        """
        with locked(self._path, LOCK_SECONDS):
            known = self.load()
            if (copied := known.copied(upstream_id, to)) is not known:
                write_atomically(self._path, _written(copied))

    def save(self, manifest: Manifest, *, configured: Collection[str] | None = None) -> Manifest:
        """Write the manifest; per upstream the newest listing wins, per tool the first name given.

        Args:
            manifest: what this process knows.
            configured: upstreams whose listings and names by other processes are kept; by default those in `manifest`.
        """
        kept = frozenset(manifest.entries if configured is None else configured) | manifest.entries.keys()
        with locked(self._path, LOCK_SECONDS):
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
            write_atomically(self._path, _written(merged))
        return merged


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
        "format": _json(FORMAT),
        "pinned": _json(manifest.is_pinned),
        "names": _object({upstream_id: _json(names) for upstream_id, names in _nested(manifest.names).items()}),
        "offer_names": _json(offer_names),
        "former_names": _json(_nested(manifest.former_names)),
        "upstreams": _object({upstream_id: _entry(entry) for upstream_id, entry in manifest.entries.items()}),
    }
    return _object(parts)


def _entry(entry: ManifestEntry) -> str:
    parts = {
        "fingerprint": _json(entry.fingerprint),
        "tools": f"[{','.join([_json(tool) for tool in entry.tools])}]",
        "listed_at": _json(entry.listed_at),
        "era": _json(entry.era),
        "server": _json([entry.server_name, entry.server_version]),
        "offers": _json(asdict(entry.offers)),
        "differences": _json({key: asdict(each) for key, each in entry.differences.items()}),
        "asks": _json(sorted(entry.asks)),
        "version": _json(entry.version),
    }
    return _object(parts)


def _object(parts: Mapping[str, str]) -> str:
    return f"{{{','.join([f'{_json(key)}:{part}' for key, part in parts.items()])}}}"


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _nested(names: Mapping[tuple[str, str], Given]) -> dict[str, dict[str, Given]]:
    nested: dict[str, dict[str, Given]] = {}
    for (upstream_id, own), name in names.items():
        nested.setdefault(upstream_id, {})[own] = name
    return nested


def _flat(nested: JsonObject) -> dict[tuple[str, str], str]:
    return {(upstream_id, own): _text(name) for upstream_id, names in nested.items() for own, name in names.items()}


def _decode(raw: JsonObject) -> Manifest:
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
    return Manifest(entries, _flat(raw["names"]), offer_names, former, is_pinned=raw.get("pinned") is True)


def _decode_offers(raw: JsonObject) -> Offers:
    def listed(key: str) -> tuple[JsonObject, ...]:
        return tuple(each for each in raw.get(key, ()) if isinstance(each, dict))

    return Offers(
        prompts=listed("prompts"),
        resources=listed("resources"),
        templates=listed("templates"),
        instructions=_text(raw.get("instructions", "")),
        has_prompts=bool(raw.get("has_prompts")),
        has_resources=bool(raw.get("has_resources")),
        completes=bool(raw.get("completes")),
        subscribes=bool(raw.get("subscribes")),
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
