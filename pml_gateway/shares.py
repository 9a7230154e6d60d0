"""Fair shares: whom what a client holds is counted for, and who gives up something where there is no more room.

A client that is alone may hold everything. Where it is full, whoever holds most gives up what it used longest ago, so
that nobody who holds less than an equal part loses anything to others. Clients without a key are told apart by their
address, of which one person may have many: as soon as all of them together hold more than half, one of them gives way.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from functools import lru_cache
from typing import Generic, TypeVar

OWN = ""
"""What the gateway does for itself."""

_ADDRESS = "address:"
_NETWORK = 64
"""Bits of an IPv6 address that tell peers apart: one machine has all addresses of such a network."""

Key = TypeVar("Key", bound=Hashable)


@lru_cache(4096)
def share_of_address(address: str) -> str:
    """The share of everybody without a key at an address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return _ADDRESS + address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return f"{_ADDRESS}{parsed.ipv4_mapped}"
        return f"{_ADDRESS}{ipaddress.ip_network((int(parsed), _NETWORK), strict=False)}"
    return f"{_ADDRESS}{parsed}"


def is_anonymous(share: str) -> bool:
    """Whether a share is that of an address."""
    return share.startswith(_ADDRESS)


class Holdings(Generic[Key]):
    """What each client holds of something, in the order in which it used it."""

    def __init__(self) -> None:
        self._shares: dict[Key, str] = {}
        self._own: dict[str, OrderedDict[Key, int]] = {}
        self._amounts: dict[str, int] = {}
        self._anonymous = 0
        self.total = 0

    def __len__(self) -> int:
        return len(self._shares)

    def __contains__(self, key: Key) -> bool:
        return key in self._shares

    def __iter__(self) -> Iterator[Key]:
        return iter(self._shares)

    def note(self, key: Key, share: str, amount: int = 1) -> None:
        """Count a thing as the one that its client used last; what was counted for it before no longer is."""
        if key in self._shares:
            self.forget(key)
        self._shares[key] = share
        own = self._own.get(share)
        if own is None:
            own = self._own[share] = OrderedDict()
        own[key] = amount
        self._count(share, amount)

    def forget(self, key: Key) -> bool:
        """Count a thing no longer; whether it was counted."""
        share = self._shares.pop(key, None)
        if share is None:
            return False
        own = self._own[share]
        self._count(share, -own.pop(key))
        if not own:
            del self._own[share], self._amounts[share]
        return True

    def used(self, key: Key) -> None:
        """Its client used a thing."""
        share = self._shares.get(key)
        if share is not None:
            self._own[share].move_to_end(key)

    def held_by(self, share: str) -> int:
        """How much one client holds."""
        return self._amounts.get(share, 0)

    def of(self, share: str) -> Iterator[Key]:
        """What one client holds, the longest unused first."""
        return iter(self._own.get(share, ()))

    def newest_of(self, share: str) -> Key | None:
        """What one client used last."""
        return next(reversed(self._own.get(share, OrderedDict())), None)

    def largest(self) -> str | None:
        """The share that gives something up where there is no more room."""
        amounts = self._amounts
        if len(amounts) > 1 and 2 * self._anonymous > self.total:
            amounts = {share: amount for share, amount in amounts.items() if is_anonymous(share)}
        return max(amounts, key=amounts.__getitem__, default=None)

    def first_to_go(self) -> Key | None:
        """What is given up where there is no more room; nothing is where nothing is held."""
        largest = self.largest()
        return None if largest is None else next(self.of(largest))

    def _count(self, share: str, amount: int) -> None:
        self.total += amount
        self._amounts[share] = self._amounts.get(share, 0) + amount
        if share.startswith(_ADDRESS):
            self._anonymous += amount
