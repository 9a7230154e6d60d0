"""Environment variables that child processes inherit: one list for all, with additions for servers and gateways.

The two additions differ because a server runs for one client and a gateway for all of them. A server is a program of
others: it gets what any program needs to start, and everything else from its configuration. A gateway is this package
in another process: it also gets what its interpreter and its libraries are set up with.

Bridges import this module, so it imports nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# fmt: off
BASE = frozenset((
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TEMP", "TMP",
    # Proxies in both spellings that programs read, and certificate authorities. A gateway needs them for its own
    # requests, such as models and telemetry; requests to servers use those of the client that they are made for.
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
))
BASE_PREFIXES = ("LC_",)

FOR_SERVERS = BASE | {
    "TERM", "NODE_EXTRA_CA_CERTS",
    # Without these, processes do not start on Windows.
    "SYSTEMROOT", "SYSTEMDRIVE", "APPDATA", "LOCALAPPDATA", "USERPROFILE", "PATHEXT", "COMSPEC",
}
FOR_GATEWAYS = BASE | {
    "PML_HOME", "VIRTUAL_ENV", "CONDA_PREFIX", "DBUS_SESSION_BUS_ADDRESS", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH",
    "DYLD_FALLBACK_LIBRARY_PATH",
}
GATEWAY_PREFIXES = (
    *BASE_PREFIXES, "XDG_", "PYTHON", "HF_", "OMP_", "MKL_", "OPENBLAS_", "ORT_", "TOKENIZERS_", "MALLOC_",
)
# fmt: on


def child_environment(environ: Mapping[str, str], configured: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a server's process; it inherits nothing else from the gateway."""
    inherited = {name: environ[name] for name in environ if name in FOR_SERVERS or name.startswith(BASE_PREFIXES)}
    return inherited | dict(configured)


def gateway_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the part of an environment that a gateway itself needs, without variables of clients such as tokens."""
    return {
        name: value
        for name, value in environ.items()
        if name in FOR_GATEWAYS or (name.startswith(GATEWAY_PREFIXES) and "TOKEN" not in name)
    }
