"""The gateway's environment becomes a child's: an allow-list plus what its definition names."""

from __future__ import annotations

from collections.abc import Mapping

ALLOWED = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "TERM",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "TEMP",
        "TMP",
        # proxies and certificate authorities, in both spellings that programs read
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "no_proxy",
        "all_proxy",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "NODE_EXTRA_CA_CERTS",
        # without these, processes do not start on Windows
        "SYSTEMROOT",
        "SYSTEMDRIVE",
        "APPDATA",
        "LOCALAPPDATA",
        "USERPROFILE",
        "PATHEXT",
        "COMSPEC",
    }
)


def child_environment(environ: Mapping[str, str], configured: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child process; nothing else of the gateway's reaches it."""
    inherited = {key: value for key, value in environ.items() if key in ALLOWED or key.startswith("LC_")}
    return inherited | dict(configured)
