"""Records what published versions of real MCP servers list, as data for `run_upgrades`.

    python -m benchmarks.record_upgrades [--only NAME ...] [--into FOLDER]

Reads `tests/data/upgrades/versions.txt`. One version after the other is installed with `npm` or `uv` into a temporary
folder (without install scripts, packages of Python only as wheels), started over stdio with an empty home, only the
environment that the file names and, where the system allows it, no network, asked for its lists, and deleted. A server
is left out if its licence is not one of `LICENCES` or fewer than two of its versions answer; the reason is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[1] / "tests" / "data" / "upgrades"
LICENCES = re.compile(r"^(MIT|Apache|BSD|ISC|MPL|0BSD)", re.IGNORECASE)
INSTALL_SECONDS = 60
ANSWER_SECONDS = 30
INSTALLED_BYTES = 200 * 1024**2
LISTS = {"tools": "tools/list", "prompts": "prompts/list", "templates": "resources/templates/list"}
CAPABILITIES = {"tools": "tools", "prompts": "prompts", "templates": "resources"}
PASSED_ON = ("PATH", "LANG", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "PIP_INDEX_URL", "UV_DEFAULT_INDEX")
"""Variables of this process that an installer needs; a server gets `PATH` and `LANG` only."""

NO_NETWORK = ["unshare", "--net", "sh", "-c", 'ip link set lo up 2>/dev/null; exec "$@"', "sh"]


class RecordingError(Exception):
    """A version that cannot be recorded, with the reason."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A line of `versions.txt`: `npm|pypi NAME VERSION ... [-- ARGUMENT ...]`."""

    registry: str
    name: str
    versions: tuple[str, ...]
    arguments: tuple[str, ...] = ()


@dataclass(slots=True)
class Plan:
    """Every server to record, and the environment that they are started with."""

    servers: list[Wanted] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)


def read_plan(path: Path) -> Plan:
    """Read `versions.txt`: servers, and lines `env KEY=VALUE`; `#` opens a comment."""
    plan = Plan()
    for line in path.read_text(encoding="utf-8").splitlines():
        words = line.split("#")[0].split()
        if not words:
            continue
        if words[0] == "env":
            key, _, value = words[1].partition("=")
            plan.environment[key] = value
            continue
        split = words.index("--") if "--" in words else len(words)
        plan.servers.append(Wanted(words[0], words[1], tuple(words[2:split]), tuple(words[split + 1 :])))
    return plan


def file_name(name: str) -> str:
    """Return the file of a package: `@scope/name` is in `scope.name.json`."""
    return f"{name.lstrip('@').replace('/', '.')}.json"


def main() -> None:
    """Record every wanted server and say what was left out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", action="append", default=[], help="only this package; may be repeated")
    parser.add_argument("--into", type=Path, default=DATA)
    arguments = parser.parse_args()
    arguments.into.mkdir(parents=True, exist_ok=True)
    plan = read_plan(DATA / "versions.txt")
    for wanted in plan.servers:
        if arguments.only and wanted.name not in arguments.only:
            continue
        versions, licence = [], ""
        for version in wanted.versions:
            started = time.monotonic()
            try:
                with tempfile.TemporaryDirectory(prefix="upgrade-", ignore_cleanup_errors=True) as folder:
                    licence, recorded = record(wanted, version, Path(folder), plan.environment)
            except (RecordingError, OSError, ValueError, LookupError) as error:
                print(f"- {wanted.name} {version}: {error}", file=sys.stderr, flush=True)
                continue
            versions.append(recorded)
            seconds = time.monotonic() - started
            print(f"+ {wanted.name} {version}: {len(recorded['tools'])} tools, {seconds:.0f} s", flush=True)
        if len(versions) < 2:
            print(f"- {wanted.name}: left out, {len(versions)} version recorded", file=sys.stderr, flush=True)
            continue
        server = {"package": wanted.name, "registry": wanted.registry, "licence": licence, "versions": versions}
        text = json.dumps(server, ensure_ascii=False, separators=(",", ":"))
        (arguments.into / file_name(wanted.name)).write_text(text + "\n", encoding="utf-8")


def record(wanted: Wanted, version: str, folder: Path, environment: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Install and ask one version; return its licence and what it lists."""
    home, code = folder / "home", folder / "code"
    home.mkdir()
    code.mkdir()
    install = _install_npm if wanted.registry == "npm" else _install_pypi
    licence, command = install(wanted.name, version, code, home)
    if not LICENCES.match(licence):
        raise RecordingError(f"licence {licence!r}")
    given = {key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}
    given |= {"HOME": str(home), "PYTHONPATH": str(code), **environment}
    can_isolate = subprocess.run([*NO_NETWORK, "true"], capture_output=True, check=False).returncode == 0
    prefix = NO_NETWORK if can_isolate else []
    arguments = [each.replace("{home}", str(home)) for each in wanted.arguments]
    with _Process([*prefix, *command, *arguments], given, home) as process:
        return licence, _cleaned({"package_version": version, **_listing(process)}, str(folder))


def _install_npm(name: str, version: str, code: Path, home: Path) -> tuple[str, list[str]]:
    cache = os.environ.get("UPGRADES_CACHE", str(home / "npm"))
    flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--omit=dev", "--omit=optional", "--prefer-offline"]
    _run(["npm", "install", "--prefix", str(code), "--cache", cache, *flags, f"{name}@{version}"], home)
    _check_size(code)
    package = json.loads((code / "node_modules" / name / "package.json").read_text(encoding="utf-8"))
    bins = package["bin"] if isinstance(package.get("bin"), dict) else {name: package["bin"]}
    base = name.rpartition("/")[2]
    chosen = bins.get(base) or next((path for key, path in bins.items() if "mcp" in key), next(iter(bins.values())))
    licence = package.get("license") or ""
    licence = licence if isinstance(licence, str) else str(licence.get("type", ""))
    root = code / "node_modules" / name
    if licence.startswith("SEE LICENSE IN"):
        texts = [root / licence.split()[-1], root / "README.md"]
        licence = _named_in("".join(each.read_text(encoding="utf-8") for each in texts if each.exists()))
    return licence, ["node", str(root / chosen)]


def _named_in(text: str) -> str:
    """Return the licences that a licence file or a readme names."""
    named = {"MIT": "MIT License", "Apache-2.0": "Apache License"}
    return " and ".join(short for short, words in named.items() if words in text)


def _install_pypi(name: str, version: str, code: Path, home: Path) -> tuple[str, list[str]]:
    cache = os.environ.get("UPGRADES_CACHE", str(home)) + "/uv"
    flags = ["--only-binary", ":all:", "--python", sys.executable, "--cache-dir", cache, "--quiet"]
    command = ["uv", "pip", "install", "--target", str(code), *flags, f"{name}=={version}"]
    try:
        # Older versions name no upper bound, and do not start with the SDK of today.
        _run([*command, "mcp<2"], home)
    except RecordingError:
        _run(command, home)
    _check_size(code)
    folder = next(
        each
        for each in code.glob("*.dist-info")
        if re.sub(r"[-_.]+", "-", each.name.split("-")[0]).lower() == re.sub(r"[-_.]+", "-", name).lower()
    )
    metadata = HeaderParser().parsestr((folder / "METADATA").read_text(encoding="utf-8"))
    texts = (folder / "entry_points.txt").read_text(encoding="utf-8")
    scripts = re.findall(r"^([\w.-]+)\s*=\s*([\w.]+):([\w.]+)", texts, re.MULTILINE)
    preferred = [each for each in scripts if each[0] == name] + [each for each in scripts if "mcp" in each[0]]
    script, module, function = [*preferred, *scripts][0]
    program = f"import sys; sys.argv[0] = {script!r}; from {module} import {function} as main; sys.exit(main())"
    # Without `-S` packages of this environment would mix with those of the server.
    return _licence_of(metadata), [sys.executable, "-S", "-c", program]


def _licence_of(metadata: Message) -> str:
    classifiers = [each.rpartition(":: ")[2] for each in metadata.get_all("Classifier", []) if "License ::" in each]
    named = [metadata.get("License-Expression"), *classifiers, metadata.get("License")]
    first = next((str(each).strip().splitlines()[0] for each in named if each and str(each).strip()), "")
    if "MPL" in first or "Mozilla" in first:
        return "MPL-2.0"
    return first or _named_in(str(metadata.get_payload()))


def _run(command: Sequence[str], home: Path) -> None:
    environment = {key: os.environ[key] for key in PASSED_ON if key in os.environ} | {"HOME": str(home)}
    try:
        done = subprocess.run(
            command, env=environment, cwd=home, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise RecordingError(f"not installed within {INSTALL_SECONDS} s") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["unknown reason"]
        raise RecordingError(f"not installed: {lines[-1][:200]}")


def _check_size(code: Path) -> None:
    size = sum(each.stat().st_size for each in code.rglob("*") if each.is_file() and not each.is_symlink())
    if size > INSTALLED_BYTES:
        raise RecordingError(f"{size // 1024**2} MiB installed")


class _Process:
    """A server process that is asked over its stdin and stdout, all within `ANSWER_SECONDS`."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        self._end = time.monotonic() + ANSWER_SECONDS
        self._last_id = 0
        self._buffer = b""

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def send(self, message: Mapping[str, Any]) -> None:
        """Write one JSON-RPC message."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self._process.stdin.flush()

    def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of a request; refuse whatever the server asks meanwhile."""
        self._last_id += 1
        self.send({"id": self._last_id, "method": method, "params": dict(params)})
        while True:
            message = self._next()
            if message.get("id") == self._last_id and "method" not in message:
                if "error" in message:
                    raise RecordingError(f"{method}: {message['error'].get('message', '')[:200]}")
                result: dict[str, Any] = message["result"]
                return result
            if "id" in message and "method" in message:
                self.send({"id": message["id"], "error": {"code": -32601, "message": "not supported"}})

    def _next(self) -> dict[str, Any]:
        while True:
            line = self._line()
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict):
                return message

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = self._end - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise RecordingError(f"no answer within {ANSWER_SECONDS} s")
                chunk = os.read(self._process.stdout.fileno(), 1 << 16)
                if not chunk:
                    raise RecordingError(f"ended: {self._last_words()}")
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = [line for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        said = [line for line in lines if "rror" in line or "equired" in line] or lines or ["without a word"]
        return said[-1].strip()[:200]


def _listing(process: _Process) -> dict[str, Any]:
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "recorder", "version": "1"}}
    opened = process.ask("initialize", client)
    process.send({"method": "notifications/initialized"})
    about = opened.get("serverInfo", {})
    listed: dict[str, Any] = {
        "name": about.get("name", ""),
        "version": about.get("version", ""),
        "instructions": opened.get("instructions", ""),
    }
    for key, method in LISTS.items():
        listed[key] = []
        if CAPABILITIES[key] not in opened.get("capabilities", {}):
            continue
        try:
            listed[key] = _pages(process, method, "resourceTemplates" if key == "templates" else key)
        except RecordingError:
            if key == "tools":
                raise
    if not listed["tools"]:
        raise RecordingError("lists no tool")
    return listed


def _pages(process: _Process, method: str, key: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: dict[str, Any] = {}
    while True:
        page = process.ask(method, cursor)
        found += page.get(key, [])
        if not page.get("nextCursor"):
            return found
        cursor = {"cursor": page["nextCursor"]}


def _cleaned(listed: dict[str, Any], folder: str) -> dict[str, Any]:
    """Replace the temporary folder in texts, and drop pictures: they are large and nothing judges them."""
    text = json.dumps(listed, ensure_ascii=False).replace(folder, "/srv")
    cleaned: dict[str, Any] = json.loads(text, object_hook=lambda each: {k: v for k, v in each.items() if k != "icons"})
    return cleaned


if __name__ == "__main__":
    if shutil.which("npm") is None or shutil.which("uv") is None:
        sys.exit("error: npm and uv must be on PATH")
    main()
