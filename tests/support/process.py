"""A gateway as a real process: started, awaited, read, stopped, always within limits."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

READY_SECONDS = 60
STOP_SECONDS = 30

SERVE = (sys.executable, "-m", "pml_gateway", "serve")
OverStdio = Literal["stdio", "bridge"]


def serve_alone(*arguments: str) -> list[str]:
    """The command of a gateway over stdio that is one process and ends with its client."""
    return [*SERVE, "--alone", *arguments]


@contextmanager
def over_stdio(over: OverStdio, home: Path, *arguments: str) -> Iterator[dict[str, Any]]:
    """How a client starts a gateway of this home, or a bridge to the one gateway, which ends with this context."""
    command, *given = [*SERVE, *arguments] if over == "bridge" else serve_alone(*arguments)
    try:
        yield {"command": command, "args": given, "env": environment(home)}
    finally:
        if over == "bridge":
            end_gateway(home)


def end_gateway(home: Path, extra: Mapping[str, str] | None = None) -> None:
    """End the gateway that bridges of this home may have started."""
    done = run_pml(home, "down", extra=extra)
    assert done.returncode == 0, done.stdout + done.stderr


@dataclass
class GatewayProcess:
    """One running `pml serve --http`."""

    process: subprocess.Popen[str]
    home: Path
    config: Path
    url: str
    log: list[str] = field(default_factory=list)

    def write_config(self, settings: Mapping[str, Any]) -> None:
        """Replace the configuration, as an editor does: whole and at once."""
        temporary = self.config.with_suffix(".new")
        temporary.write_text(json.dumps(settings), encoding="utf-8")
        temporary.replace(self.config)

    def stop(self, sent: signal.Signals = signal.SIGTERM) -> int:
        """Signal the process and wait for its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(sent)
        return self.process.wait(STOP_SECONDS)


OWN_GATEWAYS = {"PML_LOCAL__ATTACH": "false"}
"""Has commands open gateways of their own, which end with them; tests of the shared one do without."""


def environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a `pml` process with a home of its own."""
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "PYTHONPATH") if key in os.environ}
    return {
        **kept,
        "PML_HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "PYTHONWARNINGS": "error::ResourceWarning",
        **(extra or {}),
    }


def write_settings(home: Path, settings: Mapping[str, Any]) -> Path:
    """Write `config.yaml` (JSON is YAML) into a fresh home."""
    home.mkdir(parents=True, exist_ok=True)
    config = home / "config.yaml"
    config.write_text(json.dumps(settings), encoding="utf-8")
    return config


@contextmanager
def running_gateway(
    home: Path,
    settings: Mapping[str, Any],
    *arguments: str,
    extra: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Iterator[GatewayProcess]:
    """A gateway that listens; it is stopped, and its log kept, whatever happens."""
    config = write_settings(home, settings)
    command = [sys.executable, "-m", "pml_gateway", "serve", "--http", "--port", "0", *arguments]
    with listening(command, environment(home, extra), cwd or home) as (process, url, log):
        yield GatewayProcess(process, home, config, url, log)


@contextmanager
def listening(
    command: Sequence[str], env: Mapping[str, str], cwd: Path | None = None
) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """A process that says on stderr where it listens, that URL, and its stderr so far."""
    process = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
    )
    urls: queue.Queue[str | None] = queue.Queue()
    log: list[str] = []
    reader = threading.Thread(target=_read, args=(process, urls, log), daemon=True)
    reader.start()
    try:
        url = urls.get(timeout=READY_SECONDS)
        if url is None:
            raise AssertionError("the process did not start:\n" + "".join(log))
        yield process, url, log
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(STOP_SECONDS)
        finally:
            process.kill()
            reader.join(STOP_SECONDS)
            if process.stderr is not None:
                process.stderr.close()


def _read(process: subprocess.Popen[str], urls: queue.Queue[str | None], log: list[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        log.append(line)
        if match := re.search(r"listening on (\S+)", line):
            urls.put(match[1])
    urls.put(None)


def run_pml(
    home: Path, *arguments: str, extra: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """One `pml` command to its end, with a gateway of its own where it needs one."""
    return subprocess.run(
        [sys.executable, "-m", "pml_gateway", *arguments],
        env=environment(home, {**OWN_GATEWAYS, **(extra or {})}),
        cwd=cwd or home,
        capture_output=True,
        text=True,
        timeout=100,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def is_alive(pid: int) -> bool:
    """Return True if a process runs; one that has ended and was not waited for does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except (ProcessLookupError, FileNotFoundError):
        # It ended before its file was opened, or while it was read.
        return False
