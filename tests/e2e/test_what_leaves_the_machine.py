"""Nothing leaves the machine, and nothing is left on it, but what is configured: commands and gateways under strace."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.demo.definitions import demo_servers
from tests.e2e.test_process import UPSTREAM
from tests.support.process import OWN_GATEWAYS
from tests.support.skipping import unavailable
from tests.support.waiting import wait_for
from tests.support.watching import RUN_SECONDS, blind, unexpected, watched

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    # Under strace, the limit of one command comes first.
    pytest.mark.timeout(RUN_SECONDS + 60),
]

VISIT = Path(__file__).parents[1] / "support" / "visit.py"
PML = [sys.executable, "-m", "pml_gateway"]
DAYS = ["how many days lie between two dates", "calc__date_difference", '{"start": "2026-01-01", "end": "2026-03-01"}']
ECHO = ["echo a message", "far__echo", '{"message": "over HTTP"}']

_BY_FOLDER = re.compile(r"/proc/self/fd/\d+/\d+-[0-9a-f]{8}\.(?:sock|new)")
"""An owner's socket whose path is too long for an address, and which goes by its open folder."""

COMMANDS = {
    "init": [*PML, "init", "--client", "cursor", "--yes", "--json"],
    "doctor": [*PML, "doctor", "--json"],
    "tokens": [*PML, "tokens"],
    "search": [*PML, "search", DAYS[0]],
    "call": [*PML, "call", *DAYS[1:]],
    "call a URL": [*PML, "call", *ECHO[1:]],
    "demo": [*PML, "demo"],
    "serve": [sys.executable, str(VISIT), "stdio", *DAYS, *PML, "serve"],
    "serve --http": [sys.executable, str(VISIT), "http", *ECHO, *PML, "serve"],
}


class Machine:
    """A home with one client's file, the folder that its servers work in, and a folder for temporary files."""

    def __init__(self, folder: Path, upstream: str) -> None:
        self.home, self.temporary, self.work = folder / "home", folder / "temporary", folder / "work"
        for each in (self.home / ".cursor", self.temporary, self.work):
            each.mkdir(parents=True)
        self.upstream = upstream
        self.client_file = self.home / ".cursor" / "mcp.json"
        servers = {**demo_servers(self.work), "far": {"url": upstream}}
        self.client_file.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
        self.env = {
            **OWN_GATEWAYS,
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            # A desktop has a keyring behind this; without a stored login nobody asks for it.
            "DBUS_SESSION_BUS_ADDRESS": f"unix:path={self.home}/bus",
            # Values that an owner's shell may hold, and that must not bring the reports of libraries back.
            "ORT_DISABLE_TELEMETRY": "0",
            "HF_HUB_DISABLE_TELEMETRY": "0",
            "OTEL_SERVICE_NAME": "a name is no place to send to",
        }

    def may_speak_to(self, address: str) -> bool:
        """The one server that is configured with a URL; owner's sockets, also those of the demo's own home."""
        return f"http://{address}/mcp" == self.upstream or (
            address.startswith((str(self.home / ".pml" / "run"), str(self.temporary)))
            or _BY_FOLDER.fullmatch(address) is not None
        )

    def may_write(self, path: str) -> bool:
        """The gateway's folder; temporary files, which are gone afterwards; what configured servers work with."""
        return (
            Path(path) == self.home / ".pml"
            or path.startswith((f"{self.home / '.pml'}/", f"{self.temporary}/", f"{self.work}/"))
            or _BY_FOLDER.fullmatch(path) is not None
        )


def is_pythons(path: str) -> bool:
    """A compiled module beside its source, as Python keeps it wherever it may write."""
    return bool(re.search(r"/__pycache__(/[^/]+\.pyc(\.\d+)?)?$", path))


def keeps_nothing(path: str) -> bool:
    """A file without a name, by which doctor finds whether a disk takes anything; the null device; its own streams."""
    return path == "/dev/null" or bool(re.search(r"/#\d+$|^pipe:\[\d+\]$", path))


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("machine")
    url = folder / "url"
    with subprocess.Popen([sys.executable, str(UPSTREAM), "--http", str(url)]) as server:
        try:
            wait_for(url.exists, "the server over HTTP listens")
            yield Machine(folder, url.read_text(encoding="utf-8"))
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def configured(machine: Machine) -> Machine:
    if not (machine.home / ".pml" / "config.yaml").exists():
        subprocess.run(COMMANDS["init"], env=machine.env, cwd=machine.work, check=True, capture_output=True)
    return machine


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_speaks_to_configured_servers_only_and_leaves_nothing_beside_its_folder(
    command: str, request: pytest.FixtureRequest, machine: Machine, tmp_path: Path
) -> None:
    if command != "init":
        request.getfixturevalue("configured")
    seen = watched(COMMANDS[command], machine.env, machine.work, tmp_path / "logs")

    loopback = {address for address in seen.own if address.startswith(("127.0.0.1:", "::1:"))}
    assert unexpected(seen.spoken_to, machine.may_speak_to, loopback.__contains__) == []
    assert unexpected(seen.written, machine.may_write, is_pythons, keeps_nothing) == []
    assert list(machine.temporary.iterdir()) == []
    assert {path.name for path in machine.home.iterdir()} == {".cursor", ".pml"}
    assert list(machine.client_file.parent.iterdir()) == [machine.client_file]
    if "serve" in command:
        answer: dict[str, Any] = json.loads(seen.output)
        assert "search_tools" in answer["listed"]
        assert ("over HTTP" if "http" in command else "59") in answer["called"]
        assert not answer["failed"]
    if blind():
        unavailable(RuntimeError(f"only what was left was looked at: {blind()}"))


LOUD = """
import os, pathlib, socket
pathlib.Path.home().joinpath("left").write_text("x")
if not os.fork():
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 53))
    socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).connect_ex(("2001:db8::1", 443))
    socket.socket(socket.AF_UNIX).connect_ex("/run/nowhere")
    os._exit(0)
os.wait()
"""


def test_the_watch_sees_names_looked_up_addresses_and_files_of_children_too(machine: Machine, tmp_path: Path) -> None:
    if blind():
        unavailable(RuntimeError(blind()))
    env = {**machine.env, "HOME": str(tmp_path)}
    seen = watched([sys.executable, "-c", LOUD], env, tmp_path, tmp_path / "logs")
    assert set(seen.spoken_to) == {"192.0.2.1:53", "2001:db8::1:443", "/run/nowhere"}
    assert len(unexpected(seen.spoken_to, machine.may_speak_to)) == 3
    assert str(tmp_path / "left") in seen.written
