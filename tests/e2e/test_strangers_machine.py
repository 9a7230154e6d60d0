"""The README's commands on a stranger's machine: another user, an empty home, no git, no compiler, and then no network.

Root gets a user without an entry in the system's list, as in many containers; others stay who they are, with an empty
home. Programs are those of a small container image. Only installing has a network.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.skipping import unavailable

REPOSITORY = Path(__file__).parents[2]
APART = REPOSITORY / "tests" / "support" / "apart.py"
INSTALL_SECONDS = 900
RUN_SECONDS = 300

# One test installs twice what downloads a gigabyte, and then runs tests that take ten minutes.
pytestmark = [pytest.mark.e2e, pytest.mark.heavy, pytest.mark.timeout(2 * INSTALL_SECONDS + RUN_SECONDS)]

NOBODY_HERE = 65432
PROGRAMS = ("basename", "cat", "cp", "dirname", "env", "grep", "id", "ls", "mkdir", "mv", "rm", "sed", "sh", "uname")
UNREACHABLE = re.compile("NewConnectionError|NameResolutionError|ConnectTimeout|Name or service not known", re.I)
"""What pip says where there is no network to install from."""

OFFLINE, NOT_EVEN_LOOPBACK = "--offline", "--no-loopback"
SELECTION = "tests/test_*.py tests/demo tests/index/test_models.py tests/e2e/test_process.py"
"""Of the README's second command: the package's shape, bundled servers, the model, processes; all takes ten minutes."""


class Stranger:
    """Another user's home with a copy of this checkout, and what is run there."""

    def __init__(self, folder: Path) -> None:
        self.home, self.programs = folder / "home", folder / "bin"
        self.checkout, self.temporary = self.home / "pml-gateway", folder / "tmp"
        self.user = ["--user", str(NOBODY_HERE)] if os.getuid() == 0 else []
        passed_on = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
        self.env = passed_on | {"PATH": str(self.programs), "HOME": str(self.home), "TMPDIR": str(self.temporary)}
        for each in (self.programs, self.checkout, self.temporary):
            each.mkdir(parents=True)
        for name in PROGRAMS:
            (self.programs / name).symlink_to(shutil.which(name) or "/nowhere")
        for name in checked_out():
            (self.checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(REPOSITORY / name, self.checkout / name)
        if self.user:
            for each in (self.home, self.temporary, *self.home.rglob("*")):
                os.chown(each, NOBODY_HERE, NOBODY_HERE)
        python = self.programs / "python3"
        python.write_text(f'#!/bin/sh\nexec {self._python()} "$@"\n', encoding="utf-8")
        python.chmod(0o755)

    def _python(self) -> str:
        """An interpreter that this user may run: the one of these tests may lie in somebody's home."""
        fits = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))"
        candidates = (f"{sys.base_prefix}/bin/python3", "/usr/bin/python3", "/usr/local/bin/python3")
        found = (each for each in candidates if self.start(each, "-I", "-c", fits).returncode == 0)
        return next(found, None) or unavailable(FileNotFoundError(f"another user may run none of {candidates}"))

    def start(
        self, *command: str, network: str | None = None, seconds: int = RUN_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the checkout to its end."""
        return subprocess.run(
            [sys.executable, str(APART), *self.user, *([network] if network else []), *command],
            env=self.env,
            cwd=self.checkout,
            capture_output=True,
            text=True,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    def run(self, *command: str, network: str | None = OFFLINE, seconds: int = RUN_SECONDS) -> str:
        """What a command prints that must succeed."""
        done = self.start(*command, network=network, seconds=seconds)
        if done.returncode and network is None and UNREACHABLE.search(done.stderr):
            unavailable(ConnectionError(f"there is nothing to install from: {done.stderr[-500:]}"))
        assert done.returncode == 0, f"{command}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout


def checked_out() -> list[str]:
    """The files of the checkout, with those that are to be added."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    return [name for name in listed.stdout.split("\0") if (REPOSITORY / name).is_file()]


def readmes_command(ending: str) -> str:
    """The block of the README with a command, such as `pml demo`."""
    blocks = re.findall(r"```sh\n(.*?)```", (REPOSITORY / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    return str(next(block for block in blocks if re.search(rf"/{ending}\b", block))).strip()


@pytest.fixture(scope="module")
def installed() -> Iterator[tuple[Stranger, str]]:
    """A stranger who has typed the README's first command, and what it printed."""
    folder = Path(tempfile.mkdtemp(prefix="pml-stranger-"))
    folder.chmod(0o755)
    try:
        stranger = Stranger(folder)
        if not sys.platform.startswith("linux") or stranger.start("id", network=OFFLINE).returncode:
            unavailable(OSError("no network namespace can be made here"))
        yield stranger, stranger.run("sh", "-c", readmes_command("pml demo"), network=None, seconds=INSTALL_SECONDS)
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def stranger(installed: tuple[Stranger, str]) -> Stranger:
    return installed[0]


@pytest.fixture(scope="module")
def pml(stranger: Stranger) -> str:
    """The command, as the README has installed it, with a bundled server and one that cannot be reached."""
    match = re.search(r"(\S+/)pml demo", readmes_command("pml demo"))
    assert match
    servers = {
        "calc": {
            "command": str(stranger.checkout / match[1] / "python"),
            "args": ["-m", "pml_gateway.demo.servers.calc"],
        },
        "far": {"url": "https://mcp.example.com/mcp"},
    }
    file = stranger.home / "servers.json"
    file.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    command = str(stranger.checkout / match[1] / "pml")
    stranger.run(command, "init", "--from", str(file), "--yes")
    return command


def test_the_first_command_installs_and_leaves_nothing_but_the_cache_of_pip(installed: tuple[Stranger, str]) -> None:
    stranger, shown = installed
    assert "40 tools" in shown
    assert {path.name for path in stranger.home.iterdir()} <= {"pml-gateway", ".cache"}
    assert {path.name for path in stranger.home.glob(".cache/*")} <= {"pip"}
    assert list(stranger.temporary.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        ["demo"],
        ["tools"],
        ["search", "how many days lie between two dates"],
        ["call", "calc__date_difference", '{"start": "2026-01-01", "end": "2026-03-01"}'],
        ["tokens"],
        ["docs", "quickstart"],
    ],
    ids=lambda command: command[0],
)
def test_commands_need_no_network(stranger: Stranger, pml: str, command: list[str]) -> None:
    assert stranger.run(pml, *command)
    assert list(stranger.temporary.iterdir()) == []


def test_doctor_without_a_network_finds_fault_with_the_unreachable_server_only(stranger: Stranger, pml: str) -> None:
    found = json.loads(stranger.start(pml, "doctor", "--json", network=OFFLINE).stdout)
    assert [each for each in found["findings"] if each["severity"] == "error" and "far" not in str(each)] == []


@pytest.mark.parametrize(
    ("transport", "network"), [("stdio", OFFLINE), ("stdio", NOT_EVEN_LOOPBACK), ("http", OFFLINE)]
)
def test_a_gateway_without_a_network_lists_searches_and_calls(
    stranger: Stranger, pml: str, transport: str, network: str
) -> None:
    visit = [str(Path(pml).with_name("python")), "tests/support/visit.py", transport]
    asked = ["days between two dates", "calc__date_difference", '{"start": "2026-01-01", "end": "2026-03-01"}']
    answer = json.loads(stranger.run(*visit, *asked, pml, "serve", network=network))
    assert "search_tools" in answer["listed"]
    assert "calc__date_difference" in answer["found"]
    assert "59" in answer["called"]
    assert not answer["failed"]


def test_the_second_command_installs_what_its_tests_need(stranger: Stranger) -> None:
    install, _, tests = readmes_command("pytest").rpartition(" && ")
    stranger.run("sh", "-c", install, network=None, seconds=INSTALL_SECONDS)
    shown = stranger.run("sh", "-c", f"{tests} {SELECTION}", seconds=INSTALL_SECONDS)
    assert re.search(r"\d+ passed", shown)
    assert "failed" not in shown
