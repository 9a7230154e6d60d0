"""Names of tools, prompts and resources that replicas agree on: the first that gives a name gives it for all.

Of two tools that want the same name, the one listed first gets it. Replicas list tools in different orders, so that
without an agreement one name could mean different tools.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from pml_gateway.catalog.manifest import Manifest
from pml_gateway.catalog.prompts_and_resources import OfferKind
from pml_gateway.errors import GatewayError, error_message
from pml_gateway.files import Signature
from pml_gateway.log import get_logger
from pml_gateway.storage.documents import Document

if TYPE_CHECKING:
    from pml_gateway.storage.shared_documents import SharedDocuments

logger = get_logger(__name__)

MAX_NAMES = 20_000
"""Maximum names of one kind; those given longest ago are forgotten."""

Owner = tuple[str, str]
Names = Mapping[Owner, str]
NO_NAMES = Manifest()


class SharedNames:
    """The agreed names under one `naming.prefix`. Blocking."""

    def __init__(self, documents: SharedDocuments, name: str, local: Document[Manifest]) -> None:
        """Open the shared document; `local` is the file of its copy, a manifest without listings."""
        self._document = documents.shared(name, local, merged)
        self._agreed = Manifest()
        self._stamp: Signature = None

    def agreed(self, mine: Manifest, servers: Collection[str], refused: Manifest = NO_NAMES) -> Manifest:
        """Return the names that all replicas have; propose the given ones for tools without a name.

        If Redis does not answer, return the given ones, and propose them again next time.

        Args:
            mine: the names that this replica has given.
            servers: the configured servers; names of others are free.
            refused: agreed names that the current rules of naming no longer allow; new ones replace them.
        """
        if (stamp := self._document.signature) != self._stamp:
            self._stamp, self._agreed = stamp, self._document.read()
        if _has(self._agreed, mine):
            return mine
        try:
            self._agreed = self._document.change(lambda known: _with(known, mine, servers, refused))
        except (GatewayError, OSError) as error:
            logger.warning("names are not agreed on with the other replicas yet: %s", error_message(error))
            return mine
        return mine if _has(self._agreed, mine) else self._agreed


def _has(known: Manifest, mine: Manifest) -> bool:
    """Return True if `known` has all names of `mine`."""
    offers = ((names, known.offer_names.get(kind, {})) for kind, names in mine.offer_names.items())
    return all(own.items() <= all_.items() for own, all_ in ((mine.names, known.names), *offers))


def _with(known: Manifest, mine: Manifest, servers: Collection[str], refused: Manifest) -> Manifest:
    def added(kind: OfferKind) -> dict[Owner, str]:
        own, others, unusable = (each.offer_names.get(kind, {}) for each in (mine, known, refused))
        return _added(others, own, unusable, servers)

    kinds = [kind for kind in OfferKind if kind in known.offer_names or kind in mine.offer_names]
    names = _added(known.names, mine.names, refused.names, servers)
    return Manifest(names=names, offer_names={kind: added(kind) for kind in kinds})


def _added(known: Names, mine: Names, refused: Names, servers: Collection[str]) -> dict[Owner, str]:
    """Return the known names with the new ones of `mine`, unless a tool of these servers has one already."""
    new = {
        owner: name
        for owner, name in mine.items()
        if owner not in known or (known[owner] == refused.get(owner) and known[owner] != name)
    }
    kept = {owner: name for owner, name in known.items() if owner not in new}
    taken = {name for owner, name in kept.items() if owner[0] in servers}
    added = {owner: name for owner, name in new.items() if name not in taken}
    given = set(added.values())
    kept = {owner: name for owner, name in kept.items() if name not in given}
    return dict([*kept.items(), *added.items()][-MAX_NAMES:]) if added else dict(known)


def merged(mine: Manifest, theirs: Manifest) -> Manifest:
    """Merge the names of both, in either order with one result; of two tools with one name, one keeps it."""
    kinds = dict.fromkeys((*theirs.offer_names, *mine.offer_names))
    offers = {kind: _merged(mine.offer_names.get(kind, {}), theirs.offer_names.get(kind, {})) for kind in kinds}
    return Manifest(names=_merged(mine.names, theirs.names), offer_names=offers)


def _merged(mine: Names, theirs: Names) -> dict[Owner, str]:
    found: dict[Owner, str] = {}
    taken: set[str] = set()
    for owner, name in sorted({*mine.items(), *theirs.items()}):
        if owner not in found and name not in taken:
            found[owner] = name
            taken.add(name)
    return found
