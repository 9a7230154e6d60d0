"""Addresses that a login may use: servers name their authorization server, but not every address is allowed.

Allowed are all encrypted addresses and the server's own origin; unencrypted ones only on this machine, if the server
is on it as well. A server never leads further into private networks than its own zone: a server on the internet
cannot name an address of a private network or of this machine, whatever its names resolve to at connection time. The
owner can allow further origins.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Any

import anyio
import httpx2

from pml_gateway.config.servers import LOOPBACK_HOSTS
from pml_gateway.errors import UpstreamAuthError
from pml_gateway.mcp.bodies import ACCEPTED_ENCODING, bound
from pml_gateway.mcp.network import Network
from pml_gateway.upstreams.auth.logins import login_command

HTTP_SECONDS = 15.0
"""Time limit in seconds for one request to an authorization server, or one that finds out what a server asks for."""

MAX_ANSWER_BYTES = 1024 * 1024
"""Maximum size of one response of an authorization server; the largest known metadata has a few kilobytes."""

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Resolves a host and port to addresses."""

_PORTS = {"http": 80, "https": 443}
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_GLOBAL = ipaddress.ip_network("2000::/3")
"""The IPv6 range of the internet; other ranges are private, if they are used at all."""

_METADATA = (ipaddress.ip_network("192.0.0.0/24"), ipaddress.ip_network("168.63.129.16/32"))
"""Other metadata addresses of clouds, some of which Python considers public."""


class AddressZone(IntEnum):
    """Zone of an address; a server in an inner zone may name an address in an outer one, but not the reverse."""

    PUBLIC = 0
    PRIVATE = 1
    LOOPBACK = 2
    FORBIDDEN = 3
    """Link-local, multicast and unspecified addresses, no authorization servers; clouds serve secrets there."""


def zone_of(address: str) -> AddressZone:
    """Return the zone of an address, also of IPv4 written as IPv6."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        ip = inner or (ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if ip in _NAT64 else ip)
    if ip.is_loopback:
        return AddressZone.LOOPBACK
    if ip.is_link_local or ip.is_multicast or ip.is_unspecified or any(ip in network for network in _METADATA):
        return AddressZone.FORBIDDEN
    if isinstance(ip, ipaddress.IPv6Address) and ip not in _GLOBAL:
        return AddressZone.PRIVATE
    return AddressZone.PUBLIC if ip.is_global else AddressZone.PRIVATE


def origin_of(url: httpx2.URL) -> str:
    """Return scheme, host and port as owners write them; the host in ASCII, so that no letters look alike."""
    host = f"[{_host(url)}]" if ":" in _host(url) else _host(url)
    port = "" if url.port in (None, _PORTS.get(url.scheme)) else f":{url.port}"
    return f"{url.scheme}://{host}{port}"


def _host(url: httpx2.URL) -> str:
    return url.raw_host.decode("ascii")


async def resolved(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host, as the system resolves it."""
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class LoginAddresses:
    """The addresses that the login at one server may use."""

    def __init__(
        self,
        upstream_id: str,
        server_url: str,
        *,
        allowed: Collection[str] = (),
        zone: int | None = None,
        resolve: Resolve = resolved,
    ) -> None:
        """Allow the addresses that a server may lead to, and the origins of the URLs that the owner allows.

        The `zone` of the server is known once it was connected.
        """
        self.zone = zone
        self._upstream_id = upstream_id
        self._server = httpx2.URL(server_url)
        self.allowed = tuple(sorted({origin_of(httpx2.URL(each)) for each in allowed}))
        self._resolve = resolve

    async def of(self, url: httpx2.URL) -> Sequence[str]:
        """Return the addresses to connect to for this URL.

        Raises:
            UpstreamAuthError: the login may not use it.
            OSError: the host has no address.
        """
        origin = origin_of(url)
        is_own = origin == origin_of(self._server)
        if not is_own and origin not in self.allowed:
            self._check_encryption(url, origin)
        addresses = await self._resolved(url)
        zones = [zone_of(address) for address in addresses]
        if is_own:
            # The outermost zone ever seen stays: names of servers on the internet may resolve differently next time.
            self.zone = min(min(zones), self.zone if self.zone is not None else AddressZone.FORBIDDEN)
        elif origin not in self.allowed:
            innermost = max(zones)
            if innermost is AddressZone.FORBIDDEN or innermost > await self._own_zone():
                raise self._refusal(origin, "an address of a private network or of this machine", is_inner=True)
        return addresses

    async def check(self, url: str) -> None:
        """Refuse a URL that a browser or a proxy will open, which may resolve names that are unknown here.

        Raises:
            UpstreamAuthError: the login may not use it.
        """
        with suppress(OSError):
            await self.of(httpx2.URL(url))

    def _check_encryption(self, url: httpx2.URL, origin: str) -> None:
        if url.scheme == "https":
            return
        is_local = url.host in LOOPBACK_HOSTS and self._server.host in LOOPBACK_HOSTS
        if url.scheme != "http" or not is_local or self._server.scheme == "https":
            raise self._refusal(origin, "not encrypted, and not the server's own address", is_inner=False)

    async def _own_zone(self) -> int:
        if self.zone is None:
            await self.of(self._server)
        assert self.zone is not None
        return self.zone

    async def _resolved(self, url: httpx2.URL) -> Sequence[str]:
        addresses = await self._resolve(_host(url), url.port or _PORTS.get(url.scheme, 443))
        if not addresses:
            raise OSError(f"{_host(url)} has no address")
        return addresses

    def _refusal(self, origin: str, reason: str, *, is_inner: bool) -> UpstreamAuthError:
        return UpstreamAuthError(
            f"{self._upstream_id}: the server sends its login to {origin}, which is {reason}",
            hint=f"if that is right: {login_command(self._upstream_id)} --allow {origin}",
            details={"login_origin": origin, "is_inner": is_inner},
        )


class CheckedTransport(httpx2.AsyncBaseTransport):
    """Connects to the checked addresses, so that a name cannot resolve to another address in between."""

    def __init__(self, addresses: LoginAddresses, context: ssl.SSLContext) -> None:
        self._addresses = addresses
        # A connection is for one name: it must not be reused for another name of the same address.
        self._inner = httpx2.AsyncHTTPTransport(verify=context, limits=httpx2.Limits(max_keepalive_connections=0))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request to the first address that accepts it."""
        *others, last = await self._addresses.of(request.url)
        for address in others:
            try:
                return await self._inner.handle_async_request(_to(address, request))
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                continue
        return await self._inner.handle_async_request(_to(last, request))

    async def aclose(self) -> None:
        await self._inner.aclose()


def _to(address: str, request: httpx2.Request) -> httpx2.Request:
    return httpx2.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": _host(request.url)},
    )


def login_client(
    addresses: LoginAddresses, network: Network, headers: dict[str, str] | None = None
) -> httpx2.AsyncClient:
    """Create a client for one exchange with a server and its authorization server; it follows no redirects unchecked.

    A configured proxy makes the connections; addresses that names resolve to here are checked nevertheless.
    """

    async def check(request: httpx2.Request) -> None:
        await addresses.check(str(request.url))

    async def limit(response: httpx2.Response) -> None:
        bound(response, MAX_ANSWER_BYTES, is_endless=False)

    way: dict[str, Any] = (
        network.client_options()
        if network.has_proxy
        else {"transport": CheckedTransport(addresses, network.ssl_context()), "trust_env": False}
    )
    return httpx2.AsyncClient(
        headers={**(headers or {}), "accept-encoding": ACCEPTED_ENCODING},
        timeout=HTTP_SECONDS,
        follow_redirects=False,
        event_hooks={"request": [check] if network.has_proxy else [], "response": [limit]},
        **way,
    )
