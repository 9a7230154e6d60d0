"""Installs the PyPI peers, each into an environment of its own, since they want other versions of the SDK.

python -m benchmarks.install_peers
"""

from __future__ import annotations

import os
import shutil
import subprocess
import venv
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from benchmarks.processes import REPOSITORY, PeerError

INSTALL_SECONDS = 600
PEER_VERSIONS: Mapping[str, str] = MappingProxyType({"fastmcp-gateway": "0.35.0", "mcp-proxy": "0.13.0"})


def peers_home() -> Path:
    """`.e2e/peers` in the repository, or `PML_PEERS_HOME`."""
    chosen = os.environ.get("PML_PEERS_HOME")
    return Path(chosen).resolve() if chosen else REPOSITORY / ".e2e" / "peers"


def peer_python(name: str) -> Path:
    """The interpreter of an installed peer."""
    folder = peers_home() / name
    if not _stamp(name).exists():
        raise PeerError(f"{name} {PEER_VERSIONS[name]} is not installed; run python -m benchmarks.install_peers")
    return folder / "bin" / "python"


def install(name: str) -> None:
    """Install one peer, unless that version is there."""
    if _stamp(name).exists():
        return
    folder = peers_home() / name
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, f"{name}=={PEER_VERSIONS[name]}"], check=False, timeout=INSTALL_SECONDS, capture_output=True, text=True
    )
    if done.returncode:
        raise PeerError(f"could not install {name}: {done.stderr.strip()[-500:]}")
    _stamp(name).touch()


def _stamp(name: str) -> Path:
    return peers_home() / name / f"installed-{PEER_VERSIONS[name]}"


if __name__ == "__main__":
    for peer in PEER_VERSIONS:
        install(peer)
        print(f"{peer} {PEER_VERSIONS[peer]} in {peers_home() / peer}")
