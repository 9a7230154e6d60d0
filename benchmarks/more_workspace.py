"""Folders and servers of the tasks that go beyond plain calls: large files, tables, an image, a server that is down."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.workspace import Workspace, make_workspace
from tests.e2e.install import Installation
from tests.e2e.servers import real_servers

BIG_LOG_LINES = 75_000
"""About 5 MB."""

ROWS = 66_666
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def make_larger_workspace(installation: Installation, folder: Path) -> Workspace:
    """The folders of the ten tasks with more in them; nine servers that work on them, and one that does not start."""
    plain = make_workspace(installation, folder)
    everything = real_servers(installation, folder / "everything")["everything"]
    servers = {
        **plain.servers,
        "everything": everything,
        "files": _bundled("files", plain.files),
        "notes": _bundled("notes", folder / "notes.json"),
        "calc": _bundled("calc"),
        "tracker": {"command": sys.executable, "args": ["-c", "raise SystemExit(1)"]},
    }
    _write_files(plain.files)
    (plain.repository / "README.md").write_text(
        "# Billing\n\nSends invoices once a month, by mail.\n", encoding="utf-8"
    )
    return Workspace(folder, servers, down=frozenset({"tracker"}))


def _bundled(name: str, *arguments: Path) -> dict[str, Any]:
    """One of the servers that come with the package."""
    return {"command": sys.executable, "args": ["-m", f"pml_gateway.demo.servers.{name}", *map(str, arguments)]}


def _write_files(files: Path) -> None:
    log = [
        f"2026-01-05T12:00:00Z {'FATAL' if line % 30_000 == 29_999 else 'INFO'} worker-{line % 8}: "
        f"{'disk full' if line % 30_000 == 29_999 else 'sent'} invoice {line}"
        for line in range(BIG_LOG_LINES)
    ]
    _write(files / "logs" / "worker.log", "\n".join(log) + "\n")
    rows = [{"id": f"row-{row}", "amount": row * 7919 % 100_003} for row in range(ROWS)]
    _write(files / "tables" / "payments.json", json.dumps(rows))
    lines = [f"{1000 + row},customer-{row % 12},{row * 37 % 101}.5" for row in range(120)]
    _write(files / "tables" / "invoices.csv", "number,customer,amount\n" + "\n".join(lines) + "\n")
    for stage, replicas in (("staging", 1), ("production", 5)):
        for name in ("api", "database", "worker"):
            count = replicas if name == "worker" else 2
            _write(files / stage / f"{name}.yaml", f"name: {name}\nreplicas: {count}\n")
    (files / "logo.png").write_bytes(PIXEL)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
