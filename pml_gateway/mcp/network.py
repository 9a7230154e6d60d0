"""The network as a client's variables describe it: the proxies for its requests, and the authorities that they trust.

One process serves clients of different variables, so that no request to a server goes by those of the process.
"""

from __future__ import annotations

import ssl
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

import httpx2
from httpx2._utils import URLPattern

from pml_gateway.workplace import Workplace

CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_PROXIED = ("http", "https", "all")


@dataclass(frozen=True, slots=True)
class Network:
    """How requests of one client leave this machine.

    `proxies` are by the pattern of the URLs that they are for, None where those need none. `certificates` names the
    variable of the authorities, and the file or folder that it is about; None where they are the system's.
    """

    proxies: Mapping[str, str | None] = field(repr=False)
    certificates: tuple[str, str] | None

    @classmethod
    def of(cls, workplace: Workplace) -> Network:
        """As the variables of a client say."""
        named = ((name, workplace.environ.get(name)) for name in CERTIFICATES)
        found = next(((name, str(workplace.path(value))) for name, value in named if value), None)
        return cls(_by_pattern(_configured(workplace.environ)), found)

    @property
    def has_proxy(self) -> bool:
        """Whether any request goes through one."""
        return any(self.proxies.values())

    def ssl_context(self) -> ssl.SSLContext:
        """What connections are encrypted with.

        Raises:
            OSError: the certificates cannot be read.
        """
        match self.certificates:
            case ("SSL_CERT_FILE", file):
                return ssl.create_default_context(cafile=file)
            case (_, folder):
                return ssl.create_default_context(capath=folder)
            case None:
                return httpx2.create_ssl_context(trust_env=False)

    def client_options(self) -> dict[str, Any]:
        """What a client of httpx is made with, so that it asks this network and not the process's variables."""
        context = self.ssl_context()
        mounts = {
            pattern: None
            if proxy is None
            else httpx2.AsyncHTTPTransport(verify=context, proxy=httpx2.Proxy(proxy), trust_env=False)
            for pattern, proxy in self.proxies.items()
        }
        return {"verify": context, "mounts": mounts, "trust_env": False}


def _configured(environ: Mapping[str, str]) -> dict[str, str]:
    """The proxies by scheme, and under `no` what needs none, as `urllib` finds them; the system's where none is set."""
    found: dict[str, str] = {}
    # In small letters they go before the others, and take them away where they are empty.
    for name, value in sorted(environ.items(), key=lambda item: item[0].endswith("_proxy")):
        scheme, _, is_proxy = name.lower().rpartition("_")
        if is_proxy != "proxy":
            continue
        if value:
            found[scheme] = value
        elif name.endswith("_proxy"):
            found.pop(scheme, None)
    if found:
        return found
    system = ("getproxies_macosx_sysconf", "getproxies_registry")
    return next((getattr(urllib.request, name)() for name in system if hasattr(urllib.request, name)), {})


def _by_pattern(configured: Mapping[str, str]) -> dict[str, str | None]:
    """The same by the patterns of httpx, as it would make them of the process's variables."""
    found: dict[str, str | None] = {}
    for scheme in _PROXIED:
        if proxy := configured.get(scheme):
            found[f"{scheme}://"] = proxy if "://" in proxy else f"http://{proxy}"
    for entry in configured.get("no", "").split(","):
        host = entry.strip()
        if host == "*":
            return {}
        if pattern := _exception(host):
            found[pattern] = None
    return {pattern: proxy for pattern, proxy in found.items() if _is_pattern(pattern)}


def _exception(host: str) -> str:
    address, slash, network = host.partition("/")
    if "://" in host:
        return host
    match _version(address):
        case 4:
            return f"all://{host}"
        case 6:
            return f"all://[{address}]{slash}{network}"
    if host.lower() == "localhost" or host.startswith("["):
        return f"all://{host}"
    if not host or slash:
        return ""
    return f"all://{host}" if host.startswith("*.") else f"all://*{host}"


def _version(address: str) -> int | None:
    try:
        return ip_address(address).version
    except ValueError:
        return None


def _is_pattern(text: str) -> bool:
    try:
        URLPattern(text)
    except httpx2.InvalidURL:
        return False
    return True
