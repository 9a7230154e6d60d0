"""The TCP port to listen on, and what may be served there."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Mapping

from pml_gateway.config.settings import HttpSettings, Settings
from pml_gateway.errors import ConfigurationError, GatewayError
from pml_gateway.policy.refusals import refusals


def check_http(settings: Settings, environ: Mapping[str, str], *hosts: str) -> None:
    """Refuse what may not be served over HTTP, such as keys that do not resolve, or none on a public address.

    Args:
        settings: what is to be served.
        environ: where references to keys are looked up.
        hosts: addresses that are listened on, beside the one in the settings.

    Raises:
        ConfigurationError: naming the value and the remedy.
    """
    for _, error in refusals(settings, environ, *hosts):
        raise error


def check_port(settings: HttpSettings) -> None:
    """Find out whether anybody can listen there now.

    Raises:
        GatewayError: the port is taken; ConfigurationError: no process may take it.
    """
    bound(settings.host, settings.port).close()


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that is bound and does not listen yet.

    Raises:
        GatewayError: the port is taken; ConfigurationError: no process may take it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only where the protocol is named; with it, every answer takes 40 ms longer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), port))
    except OSError as error:
        listener.close()
        # Whoever has a port may leave it: nothing is wrong with the configuration then.
        kind = GatewayError if error.errno == errno.EADDRINUSE else ConfigurationError
        raise kind(
            f"cannot listen on {host}:{port}: {error.strerror}",
            hint="choose another port with --port, or 0 for a free one",
        ) from error
    return listener


def url_of(listener: socket.socket, path: str) -> str:
    """Return the URL of a path that is served there."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}{path}"


def reached_at(listener: socket.socket) -> str:
    """Return the URL by which other machines reach it: if it listens on all addresses, by that of the way out."""
    host, port = listener.getsockname()[:2]
    if not ipaddress.ip_address(host).is_unspecified:
        return url_of(listener, "")
    with socket.socket(listener.family, socket.SOCK_DGRAM) as probe:
        try:
            # Nothing is sent: it only says which address would be used.
            probe.connect(("2001:db8::1" if ":" in host else "192.0.2.1", 9))
        except OSError:
            probe.bind(("::1" if ":" in host else "127.0.0.1", 0))
        own = probe.getsockname()[0]
    return f"http://[{own}]:{port}" if ":" in own else f"http://{own}:{port}"
