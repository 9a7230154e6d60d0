"""This installation: the command that adds to it what was left out, and how old it is beside others."""

from __future__ import annotations

import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

EXTRAS = {
    "sentence-transformers": ("sentence-transformers>=5",),
    "otel": ("opentelemetry-sdk>=1.37", "opentelemetry-exporter-otlp-proto-http>=1.37"),
    "redis": ("redis[hiredis]>=5",),
}
"""Modules of each extra, as in `pyproject.toml`."""

TRANSFORMERS, *_ = EXTRAS["sentence-transformers"]
"""Every embedding model but the shipped one."""


def adding(*requirements: str) -> str:
    """Return the command that adds packages to the environment that runs this, by the program that made it.

    The packages and not an extra of ours: the name of the gateway would be looked up, and the installation may come
    from a folder.
    """
    prefix = Path(sys.prefix)
    if (prefix / "pipx_metadata.json").is_file():
        return shlex.join(["pipx", "inject", prefix.name, *requirements])
    if find_spec("pip") is None:  # uv makes environments without
        return shlex.join(["uv", "pip", "install", "--python", sys.executable, *requirements])
    return shlex.join([sys.executable, "-m", "pip", "install", *requirements])


def is_newer(one: str, other: str) -> bool:
    """Return True if a version is strictly newer; one that cannot be parsed is not."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(one) > Version(other)
    # What has too many digits is no version either, and says so in another way.
    except (InvalidVersion, ValueError):
        return False
