"""Host and Origin headers: read strictly, so that nothing passes as this gateway that a browser finds elsewhere."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

MAX_PORT = 65535
_DEFAULT_PORTS = {"http": 80, "https": 443}
_WEB = tuple(_DEFAULT_PORTS)
ANY_PORT = ":*"

KEPT = 256
"""Headers whose reading is kept: clients send the same ones again and again."""

_AUTHORITY = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)\.?)(?::(?P<port>[0-9]{1,5}))?"
)
"""RFC 3986 as far as names are found by DNS: no user, nothing percent-encoded, and a port of digits alone."""

_ORIGIN = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>.+)")


@dataclass(frozen=True, slots=True)
class Authority:
    """A host in small letters, without brackets and final dot, and its port where one is written."""

    host: str
    port: int | None


Origin = tuple[str, Authority]
"""The scheme, and an authority without the port that the scheme has anyway."""


@lru_cache(maxsize=KEPT)
def read_authority(text: str) -> Authority | None:
    """Return the `host[:port]` of a Host header; None where it is anything else."""
    found = _AUTHORITY.fullmatch(text)
    if found is None:
        return None
    port = int(found["port"]) if found["port"] else None
    if port is not None and port > MAX_PORT:
        return None
    if found["name"]:
        return Authority(found["name"].lower(), port)
    try:
        return Authority(str(ipaddress.IPv6Address(found["six"])), port)
    except ValueError:
        return None


def read_origin(text: str) -> Origin | None:
    """Return the `scheme://host[:port]` of an Origin header; None where it is anything else, as `null` is."""
    found = _ORIGIN.fullmatch(text)
    authority = read_authority(found["authority"]) if found is not None else None
    if found is None or authority is None:
        return None
    scheme = found["scheme"].lower()
    if authority.port == _DEFAULT_PORTS.get(scheme):
        authority = Authority(authority.host, None)
    return scheme, authority


class KnownHosts:
    """The names under which a server may be asked, and the origins whose pages may ask it."""

    def __init__(self, names: Iterable[str], hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        """Take `names` with any port; `hosts` and `origins` as they are configured, with `:*` for any port."""
        self._any_port: set[str] = set()
        self._hosts: set[Authority] = set()
        self._origins_of_any_port: set[tuple[str, str]] = set()
        self._origins: set[Origin] = set()
        for name in names:
            host = f"[{name.strip('[]')}]" if ":" in name else name
            self._add_host(f"{host}{ANY_PORT}")
        for host in hosts:
            self._add_host(host)
        for text in origins:
            origin = read_origin(text.removesuffix(ANY_PORT))
            if origin is not None and text.endswith(ANY_PORT):
                self._origins_of_any_port.add((origin[0], origin[1].host))
            elif origin is not None:
                self._origins.add(origin)

    def _add_host(self, text: str) -> None:
        authority = read_authority(text.removesuffix(ANY_PORT))
        if authority is None:
            return
        if text.endswith(ANY_PORT):
            self._any_port.add(authority.host)
        else:
            self._hosts.add(authority)

    def refused(self, headers: Iterable[tuple[bytes, bytes]]) -> Literal["host", "origin"] | None:
        """Return the header, with names in lower case, that is a reason to refuse a request."""
        hosts, origins = [], []
        for name, value in headers:
            if name == b"host":
                hosts.append(value.decode("latin-1"))
            elif name == b"origin":
                origins.append(value.decode("latin-1"))
        if len(hosts) != 1 or not self._knows_host(hosts[0]):
            return "host"
        if len(origins) > 1 or not all(map(self._knows_origin, origins)):
            return "origin"
        return None

    def _knows_host(self, text: str) -> bool:
        authority = read_authority(text)
        return authority is not None and (authority.host in self._any_port or authority in self._hosts)

    def _knows_origin(self, text: str) -> bool:
        origin = read_origin(text)
        if origin is None:
            return False
        scheme, authority = origin
        if origin in self._origins or (scheme, authority.host) in self._origins_of_any_port:
            return True
        return scheme in _WEB and (authority.host in self._any_port or authority in self._hosts)
