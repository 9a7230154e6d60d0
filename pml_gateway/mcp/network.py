"""The network settings in a client's environment: the proxies for its requests, and its certificate authorities.

One process serves clients with different environments, so requests to servers never use those of the process.
"""

from __future__ import annotations

import ssl
import threading
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx2
from cachetools import TTLCache, cached
from httpx2._utils import URLPattern

from pml_gateway.files import Signature, signature
from pml_gateway.working_directory import WorkingDirectory

CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
CONTEXT_SECONDS = 60
"""Servers that connect at about the same time share a TLS context: reading the authorities takes 10 ms."""

MAX_CONTEXTS = 16
_PROXIED = ("http", "https", "all")


@dataclass(frozen=True, slots=True)
class Network:
    """The network settings for requests of one client.

    `proxies` are by URL pattern; None for URLs that bypass the proxy. `certificates` holds the name of the variable,
    and the file or folder in it; None if the system's authorities are used.
    """

    proxies: Mapping[str, str | None] = field(repr=False)
    certificates: tuple[str, str] | None

    @classmethod
    def of(cls, working_directory: WorkingDirectory) -> Network:
        """Return the network settings in the environment of a client."""
        named = ((name, working_directory.environ.get(name)) for name in CERTIFICATES)
        found = next(((name, str(working_directory.path(value))) for name, value in named if value), None)
        return cls(_by_pattern(_configured(working_directory.environ)), found)

    @property
    def has_proxy(self) -> bool:
        """Return True if any request goes through a proxy."""
        return any(self.proxies.values())

    def ssl_context(self) -> ssl.SSLContext:
        """Return the TLS context for connections.

        Raises:
            OSError: the certificates cannot be read.
        """
        return _ssl_context(self.certificates, signature(Path(self.certificates[1])) if self.certificates else None)

    def client_options(self) -> dict[str, Any]:
        """Return options for an httpx client that uses these settings instead of the process's environment."""
        context = self.ssl_context()
        mounts = {
            pattern: None
            if proxy is None
            else httpx2.AsyncHTTPTransport(verify=context, proxy=httpx2.Proxy(proxy), trust_env=False)
            for pattern, proxy in self.proxies.items()
        }
        return {"verify": context, "mounts": mounts, "trust_env": False}


@cached(TTLCache(MAX_CONTEXTS, CONTEXT_SECONDS), lock=threading.Lock())
def _ssl_context(certificates: tuple[str, str] | None, _state: Signature) -> ssl.SSLContext:
    """Make the context of certificates; the state of their file is part of what it is kept by."""
    match certificates:
        case ("SSL_CERT_FILE", file):
            return ssl.create_default_context(cafile=file)
        case (_, folder):
            return ssl.create_default_context(capath=folder)
        case None:
            return httpx2.create_ssl_context(trust_env=False)


def _configured(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the proxies by scheme, and the exceptions under `no`, like `urllib`; the system's if none is set."""
    found: dict[str, str] = {}
    # Lower-case variables take precedence, and remove the others if they are empty.
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
    """Return the proxies by URL pattern of httpx, as it would derive them from the process's environment."""
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
