"""The folders the recorded tasks work in: settings, a log, reports, and a repository with a history."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.install import Installation
from tests.e2e.servers import real_servers

GIT_SECONDS = 30
LOG_LINES = 150
REPORT_LINES = 25
_DATE = "2026-01-05T12:00:00+00:00"
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.+-]+")
_IDENTITY = {
    "GIT_AUTHOR_NAME": "Sample",
    "GIT_AUTHOR_EMAIL": "sample@example.org",
    "GIT_COMMITTER_NAME": "Sample",
    "GIT_COMMITTER_EMAIL": "sample@example.org",
    "GIT_AUTHOR_DATE": _DATE,
    "GIT_COMMITTER_DATE": _DATE,
}

FIRST = """class Invoice:
    def __init__(self, amounts):
        self.amounts = amounts

    def total(self):
        return sum(self.amounts)
"""
SECOND = FIRST.replace("sum(self.amounts)", "round(sum(self.amounts), 2)")
THIRD = SECOND.replace("amounts):", 'amounts, currency="EUR"):').replace(
    "= amounts\n", "= amounts\n        self.currency = currency\n"
)
CHANGED = THIRD.replace("        self.amounts =", "        assert min(amounts) >= 0\n        self.amounts =")


@dataclass(frozen=True, slots=True)
class Workspace:
    """One fresh copy of the folders, and the servers that work on it."""

    folder: Path
    servers: dict[str, dict[str, Any]]
    down: frozenset[str] = frozenset()
    """Those of the servers that do not start."""

    @property
    def files(self) -> Path:
        """What the filesystem server may touch beside the repository."""
        return self.folder / "files"

    @property
    def repository(self) -> Path:
        """A git repository with a tag, three commits and a change that is not committed."""
        return self.folder / "repository"

    def filled(self, value: Any) -> Any:
        """A JSON value with `{files}` and `{repo}` replaced by the folders."""
        text = json.dumps(value).replace("{files}", str(self.files)).replace("{repo}", str(self.repository))
        return json.loads(text)

    def anonymous(self, text: str) -> str:
        """A text without the name of the folder, which is another one in every run and costs tokens."""
        return text.replace(str(self.folder), "/work")

    def state(self) -> dict[str, str]:
        """What the tasks left behind: files, memory and commits, without times of day."""
        found = {
            str(path.relative_to(self.folder)): path.read_text(encoding="utf-8", errors="replace")
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and ".git" not in path.parts
        }
        found["commits"] = _git(self.repository, "log", "--all", "--format=%s")
        return {name: _TIME.sub("TIME", self.anonymous(text)) for name, text in found.items()}


def make_workspace(installation: Installation, folder: Path) -> Workspace:
    """Fill a new folder and say which servers work on it."""
    servers = real_servers(installation, folder)
    del servers["everything"]
    workspace = Workspace(folder, servers)
    servers["filesystem"]["args"].append(str(workspace.repository))
    servers["git"]["env"] = {key: value for key, value in _IDENTITY.items() if not key.endswith("DATE")}
    _write_files(workspace.files)
    shutil.rmtree(workspace.repository)
    _write_repository(workspace.repository)
    return workspace


def _write_files(files: Path) -> None:
    for name, port in (("api", 9000), ("database", 5432), ("worker", 8080)):
        text = f"name: {name}\nhost: {name}.internal\nport: {port}\nreplicas: 2\nlog_level: info\n"
        _write(files / "config" / f"{name}.yaml", text)
    levels = ("INFO", "INFO", "WARNING", "INFO", "ERROR")
    log = [
        f"2026-01-05T12:{line // 60:02}:{line % 60:02}Z {levels[line % 5]} worker-{line % 3}: invoice {4000 + line} "
        f"{'was sent' if line % 5 < 4 else 'could not be sent: connection refused'} after {line * 7 % 90} ms"
        for line in range(LOG_LINES)
    ]
    _write(files / "logs" / "app.log", "\n".join(log) + "\n")
    for number, month in enumerate(("january", "february", "march"), start=1):
        lines = [
            f"- Customer {number * 100 + line} was billed {line * 37 % 500 + 20} EUR for {line % 9 + 1} seats."
            for line in range(REPORT_LINES)
        ]
        _write(files / "reports" / f"{number}-{month}.md", f"# {month.title()}\n\n" + "\n".join(lines) + "\n")


def _write_repository(repository: Path) -> None:
    repository.mkdir()
    _git(repository, "init", "-q", "-b", "main")
    _write(repository / "README.md", "# Billing\n\nSends invoices to customers once a month.\n")
    for text, message in (
        (FIRST, "First commit"),
        (SECOND, "Round totals to cents"),
        (THIRD, "Give invoices a currency"),
    ):
        _write(repository / "billing.py", text)
        _git(repository, "add", ".")
        _git(repository, "commit", "-q", "-m", message)
        if text is FIRST:
            _git(repository, "tag", "v1.0")
    _write(repository / "billing.py", CHANGED)


def _git(repository: Path, *arguments: str) -> str:
    environment = {**os.environ, **_IDENTITY, "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(
        ["git", *arguments],
        cwd=repository,
        env=environment,
        check=True,
        timeout=GIT_SECONDS,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    return done.stdout


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
