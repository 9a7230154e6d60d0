"""Names of tools, prompts and resources that replicas agree on: the first that gives a name gives it for all.

A name depends on what was listed before: of two tools that want the same one, the first gets it. Replicas hear of tools
in different orders, so that each would call another tool by it.
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
"""Names of one kind that are remembered, the last given: those of servers that are gone leave first."""

Owner = tuple[str, str]
Names = Mapping[Owner, str]
NO_NAMES = Manifest()


class SharedNames:
    """The names of one way of naming. Blocking."""

    def __init__(self, documents: SharedDocuments, name: str, local: Document[Manifest]) -> None:
        """Name the document; `local` is the file of its copy, a manifest without listings."""
        self._document = documents.shared(name, local, merged)
        self._agreed = Manifest()
        self._stamp: Signature = None

    def agreed(self, mine: Manifest, servers: Collection[str], refused: Manifest = NO_NAMES) -> Manifest:
        """Return the names that all replicas have; a tool that has none yet gets the given one.

        If Redis does not answer, the given ones are returned, and offered again next time.

        Args:
            mine: the names given here.
            servers: the servers that are configured; others give their names away.
            refused: names of all that cannot be used here, as names are made otherwise now.
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
    """Return True if all names of mine are known."""
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
    """Return the known names and those of mine that are new, unless another tool of these servers has them."""
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
    """Return the names of both, in any order of the two; of two that are the same, one stays."""
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
