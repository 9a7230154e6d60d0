"""Saves what a runner measured, with the machine, the versions and the settings it was measured with."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.install_peers import PEER_VERSIONS

RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = (
    "pml-gateway",
    "fastmcp",
    "mcp",
    "httpx2",
    "uvicorn",
    "starlette",
    "pydantic",
    "onnxruntime",
    "sentence-transformers",
    "torch",
)


def machine() -> dict[str, Any]:
    """What decides speed; nothing that names the machine."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3, 1),
        "load_before": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    """Python, the packages on both sides of the wire, and the peers."""
    found = {"python": platform.python_version(), **PEER_VERSIONS}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def save(
    question: str,
    settings: Mapping[str, Any],
    measured: Mapping[str, Any],
    *,
    folder: Path = RESULTS,
    name: str | None = None,
) -> Path:
    """Write one JSON file; the time keeps earlier ones, unless a fixed name replaces them."""
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)
    path = folder / (name or f"{question}-{now:%Y%m%d-%H%M%S}.json")
    report = {
        "question": question,
        "time": now.isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "settings": dict(settings),
        **measured,
    }
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return path


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1] if match else platform.processor()
