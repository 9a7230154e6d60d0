"""The first day of somebody with five clients: thirteen servers brought in, served to real clients, and given back.

The home starts without any package; npx and uvx fetch every server while the clients already look. What a machine
cannot run is skipped by itself, with the reason, and the rest goes on.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.skipping import unavailable

from .inspector import Inspector
from .install import Installation, InstallationError, install_client, install_uv
from .servers import create_repository
from .typescript import TypeScriptClient, call

# Thirteen servers and two clients are installed, then started several times.
pytestmark = [pytest.mark.e2e, pytest.mark.heavy, pytest.mark.timeout(1200)]

ADA = Path(__file__).with_name("ada")
"""The files of her clients, as they lie in her home; `/home/ada` in them becomes the home of the test."""

FILES = {
    "claude-code": ".claude.json",
    "claude-desktop": ".config/Claude/claude_desktop_config.json",
    "cursor": ".cursor/mcp.json",
    "vscode": ".config/Code/User/mcp.json",
    "codex": ".codex/config.toml",
}
SERVERS = {
    "claude-code": {"filesystem": "npx", "github": "npx", "time": "uvx", "git": "uvx"},
    "claude-desktop": {"filesystem": "npx", "memory": "npx", "mail": "npx"},
    "cursor": {"sequential-thinking": "npx", "context7": "npx", "looms": "jacquard-mcp"},
    "vscode": {"everything": "npx", "fetch": "uvx", "tables": "asks for a password"},
    "codex": {"sqlite": "uvx", "calculator": "uvx", "brave": "npx"},
}
"""What starts the servers of each client; where that is none of the two runners, the gateway cannot start it."""

SECRETS = {
    "GITHUB_PERSONAL_ACCESS_TOKEN": "ghp-of-ada-8c1f5a90",
    "EMAIL_PASS": "bernoulli-1842",
    "IMAP_PASS": "bernoulli-1843",
    "SMTP_PASS": "bernoulli-1844",
    "CONTEXT7_API_KEY": "ctx7sk-of-ada-7d2b",
    "LOOM_TOKEN": "loom-of-ada-51c0",
    "BRAVE_API_KEY": "BSA-of-ada-90aa",
}
NOT_CALLED = {
    "github": "its tools ask GitHub",
    "mail": "its tools want a mail server",
    "context7": "its tools ask Upstash",
    "brave": "its tools want an account",
    "fetch": "its tool reads the web",
}
QUIET = {"DISABLE_AUTOUPDATER": "1", "DISABLE_TELEMETRY": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}

INSTALL_SECONDS = 300
"""All servers, a few side by side; twenty seconds on a fast line."""

COMMAND_SECONDS = INSTALL_SECONDS + 20

START_SECONDS = 120
"""Until a gateway that has just started answers a call: thirteen servers start with it, on a busy machine slowly."""

END_SECONDS = 30


@dataclass
class Ada:
    """Her home, what her commands run in, and all they have said."""

    home: Path
    path: str
    said: list[str] = field(default_factory=list)

    @property
    def project(self) -> Path:
        return self.home / "engine"

    def file(self, client: str) -> Path:
        return self.home / FILES[client]

    def run(self, *command: str | Path, exit_codes: tuple[int, ...] = (0,)) -> str:
        """Standard output of a command in her project."""
        done = subprocess.run(
            command,
            env={"HOME": str(self.home), "PATH": self.path, "LANG": "C.UTF-8", **QUIET},
            cwd=self.project,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        self.said += [done.stdout, done.stderr]
        assert done.returncode in exit_codes, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def pml(self, *arguments: str, exit_codes: tuple[int, ...] = (0,)) -> dict[str, Any]:
        """The JSON of a `pml` command."""
        said = self.run(sys.executable, "-m", "pml_gateway", *arguments, "--json", exit_codes=exit_codes)
        answer: dict[str, Any] = json.loads(said)
        return answer

    def named(self, client: str) -> set[str]:
        """Which servers of this client its file has."""
        text = self.file(client).read_text(encoding="utf-8")
        return {name for name in ("pml", *SERVERS[client]) if re.search(rf'(?m)"{name}": |\.{name}[\].]', text)}

    def startable(self, client: str) -> set[str]:
        """Which of its servers the gateway can start on this machine."""
        runners = {"npx", "uvx"} if self.has_uvx else {"npx"}
        return {name for name, runner in SERVERS[client].items() if runner in runners}

    @property
    def has_uvx(self) -> bool:
        return any((Path(folder) / "uvx").exists() for folder in self.path.split(os.pathsep))


@pytest.fixture
def ada(home: Path) -> Ada:
    """Ada at her machine, before she knows of the gateway."""
    for source in ADA.rglob("*"):
        if source.is_file():
            file = home / source.relative_to(ADA)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(source.read_bytes().replace(b"/home/ada", os.fsencode(home)))
    (home / "papers").mkdir()
    (home / "papers" / "note.txt").write_text("Note G computes Bernoulli numbers.\n", encoding="utf-8")
    # uv has certificates of its own, and not those of a machine behind a proxy.
    (home / ".config" / "uv").mkdir()
    (home / ".config" / "uv" / "uv.toml").write_text("system-certs = true\n", encoding="utf-8")
    create_repository(home / "engine")
    return Ada(home, os.environ["PATH"])


def test_five_clients_are_brought_in_served_and_given_back(
    ada: Ada, installation: Installation, subtests: pytest.Subtests
) -> None:
    claude = or_none(subtests, "claude", lambda: install_client("claude"))
    codex = or_none(subtests, "codex", lambda: install_client("codex"))
    if uv := or_none(subtests, "uvx", install_uv):
        ada.path = f"{uv}{os.pathsep}{ada.path}"
    if claude:
        # Its first run writes the file in its own way; from then on it changes what it is told to.
        ada.run(claude, "mcp", "get", "nothing", exit_codes=(0, 1))
    before = {client: ada.file(client).read_bytes() for client in FILES}

    with subtests.test("init writes what it showed, and keeps secrets for itself"):
        initialise(ada)
        assert {client: ada.file(client).read_bytes() for client in FILES} == before
    for client in FILES:
        with subtests.test("connect leaves what the gateway cannot start", client=client):
            connect(ada, client)
    assert not (ada.home / ".npm" / "_npx").exists(), "connect started a server"

    if claude:
        with subtests.test("Claude Code reaches the gateway while it installs"):
            assert re.search(r"(?m)^pml: .*Connected$", ada.run(claude, "mcp", "list"))
            assert "Connected" in ada.run(claude, "mcp", "get", "pml")
    if codex:
        with subtests.test("Codex knows the gateway alone"):
            assert [each["name"] for each in json.loads(ada.run(codex, "mcp", "list", "--json"))] == ["pml"] + (
                [] if ada.has_uvx else ["sqlite", "calculator"]
            )
            assert "enabled: true" in ada.run(codex, "mcp", "get", "pml")

    with subtests.test("every server that can be started lists tools"):
        everything_is_installed(ada)
    with subtests.test("doctor names the two servers that cannot be started"):
        findings = ada.pml("doctor", exit_codes=(1,))["findings"]
        wrong = " ".join(f"{each['subject']} {each['what']}" for each in findings if each["severity"] == "error")
        assert "jacquard-mcp" in wrong
        assert "servers.tables" in wrong
    with subtests.test("the Inspector lists, searches and calls, from Cursor's file"):
        inspect(ada, installation)
    steps = {name: (step, expected) for name, step, expected in calls(ada) if name in ada_serves(ada)}
    with subtests.test("the TypeScript SDK runs, from Claude Desktop's file"):
        answers = say(ada, installation, {name: step for name, (step, _) in steps.items()})
        for name, (_, expected) in steps.items():
            with subtests.test("the TypeScript SDK calls", server=name):
                assert expected in answers[name]
    for name, reason in NOT_CALLED.items():
        with subtests.test("not called", server=name):
            pytest.skip(f"{name} was listed only: {reason}")

    expected_after = dict(before)
    with subtests.test("files are edited in between"):
        for client, edit in EDITS.items():
            edited = edit(ada.file(client).read_text(encoding="utf-8"))
            assert edited != ada.file(client).read_text(encoding="utf-8")
            ada.file(client).write_text(edited, encoding="utf-8")
            expected_after[client] = edit(before[client].decode()).encode()
        if claude:
            expected_after["claude-code"] = added_by_claude(ada, claude, before["claude-code"])
    for client in FILES:
        with subtests.test("disconnect brings back every byte", client=client):
            ada.pml("disconnect", client, *scopes(client), "--yes")
            assert ada.file(client).read_bytes().decode() == expected_after[client].decode()

    with subtests.test("no secret stays behind"):
        assert ada.pml("backups")["backups"] == []
        assert secrets_in("".join(ada.said)) == []
        assert dict(files_with_secrets(ada)) == {}
    with subtests.test("no process stays behind"):
        if not Path("/proc/self/environ").exists():
            pytest.skip("only Linux says what processes were started with")
        # The gateway that all clients share stays for a while by itself, with its servers.
        assert ada.pml("down")["unfinished"] == 0
        assert processes_left(ada) == []


def or_none(subtests: pytest.Subtests, name: str, install: Callable[[], Path]) -> Path | None:
    """A program, or that the parts which need it are skipped."""
    with subtests.test("installed", program=name):
        try:
            return install()
        except InstallationError as exc:
            unavailable(exc)
    return None


def initialise(ada: Ada) -> None:
    shown = ada.pml("init", "--dry-run")
    assert not (ada.home / ".pml").exists()
    written = ada.pml("init", "--yes")
    config = (ada.home / ".pml" / "config.yaml").read_text(encoding="utf-8")
    assert written["written"]
    assert "".join(re.findall(r"(?m)^\+(?!\+\+ )(.*\n)", shown["diff"])) == config
    assert set(re.findall(r"(?m)^  ([\w-]+):$", config)) == {name for names in SERVERS.values() for name in names}
    secrets_file = ada.home / ".pml" / "secrets.env"
    assert stat.S_IMODE(secrets_file.stat().st_mode) == 0o600
    assert dict(re.findall(r'(?m)^(\w+)="(.*)"$', secrets_file.read_text(encoding="utf-8"))) == SECRETS


def connect(ada: Ada, client: str) -> None:
    shown = ada.pml("connect", client, *scopes(client), "--dry-run")
    assert "pml" not in ada.named(client)
    done = ada.pml("connect", client, *scopes(client), "--yes")
    assert [each["diff"] for each in edits(done)] == [each["diff"] for each in edits(shown)]
    assert ada.named(client) == SERVERS[client].keys() - ada.startable(client) | {"pml"}


def scopes(client: str) -> list[str]:
    return ["--all-scopes"] if client == "claude-code" else []


def edits(answer: dict[str, Any]) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = answer.get("edits", [answer])
    return listed


def ada_serves(ada: Ada) -> set[str]:
    return {name for client in SERVERS for name in ada.startable(client)}


def everything_is_installed(ada: Ada) -> None:
    end = time.monotonic() + INSTALL_SECONDS
    listed: set[str] = set()
    while listed != ada_serves(ada) and time.monotonic() < end:
        ada.pml("upstreams", "--probe", exit_codes=(0, 1))
        listed = {tool["server"] for tool in ada.pml("tools")["tools"]}
    assert listed == ada_serves(ada)


def inspect(ada: Ada, installation: Installation) -> None:
    inspector = Inspector(installation, ada.home, ada.file("cursor"), path=ada.path)
    assert {"search_tools", "call_tool"} <= {tool["name"] for tool in inspector.list_tools()}
    found = inspector.call_tool("search_tools", {"query": "read a file from the disk"})
    assert "filesystem__read_text_file" in json.dumps(found)
    note = {"name": "filesystem__read_text_file", "arguments": {"path": str(ada.home / "papers" / "note.txt")}}
    end = time.monotonic() + START_SECONDS
    result = ""
    while is_late(result or None) and (not result or time.monotonic() < end):
        result = json.dumps(inspector.call_tool("call_tool", note))
        ada.said.append(result)
    assert "Note G" in result
    ada.said.append(json.dumps(found))


def calls(ada: Ada) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A call of each server that answers without the world outside, and what its answer says."""
    thought = {"thought": "Weave.", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}
    person = {"name": "Charles", "entityType": "person", "observations": ["builds an engine"]}
    yield "filesystem", call("filesystem__list_allowed_directories"), "papers"
    yield "memory", call("memory__create_entities", entities=[person]), "builds an engine"
    yield "time", call("time__get_current_time", timezone="Europe/London"), "Europe/London"
    yield "git", call("git__git_log", repo_path=str(ada.project)), "First commit"
    yield "sequential-thinking", call("sequential-thinking__sequentialthinking", **thought), "thoughtHistoryLength"
    yield "everything", call("everything__echo", message="Note G"), "Echo: Note G"
    yield (
        "sqlite",
        call("sqlite__create_table", query="CREATE TABLE IF NOT EXISTS cards (pattern TEXT)"),
        "Table created",
    )
    yield "calculator", call("calculator__calculate", expression="6 * 7"), "42"


def say(ada: Ada, installation: Installation, steps: dict[str, dict[str, Any]]) -> dict[str, str]:
    """What each server answers in one session, which is repeated for those that were still starting."""
    entry = json.loads(ada.file("claude-desktop").read_bytes())["mcpServers"]["pml"]
    target = {**entry, "env": {"HOME": str(ada.home), "PATH": ada.path}}
    end = time.monotonic() + START_SECONDS
    answers: dict[str, str] = {}
    while (left := {name: step for name, step in steps.items() if is_late(answers.get(name))}) and (
        not answers or time.monotonic() < end
    ):
        results = TypeScriptClient(installation).run(target, list(left.values()))["results"]
        answers |= {name: json.dumps(result) for name, result in zip(left, results, strict=True)}
        ada.said += answers.values()
    return answers


def is_late(answer: str | None) -> bool:
    """Whether nothing was answered yet, or that the server still starts."""
    return answer is None or "UPSTREAM_UNAVAILABLE" in answer


def _more_in_cursor(text: str) -> str:
    return text.replace('"mcpServers": {', '"mcpServers": {\n\t\t"weather": {"url": "https://weather.example/mcp"},', 1)


def _more_in_vscode(text: str) -> str:
    text = text.replace("// Ada's servers in VS Code", "// Ada's servers in VS Code, and Charles's", 1)
    return text.replace('"servers": {', '"servers": {\n    // for walks\n    "weather": {"command": "weather"},', 1)


def _more_in_codex(text: str) -> str:
    return text.replace("# asks first", "# asks", 1) + "\n# for the loom\n[profiles.quick]\nmodel = 'gpt-5-mini'\n"


EDITS: dict[str, Callable[[str], str]] = {
    "cursor": _more_in_cursor,
    "vscode": _more_in_vscode,
    "codex": _more_in_codex,
}
"""What she changes by hand, in the text before `pml connect` as well as in the one after it."""


def added_by_claude(ada: Ada, claude: Path, before: bytes) -> bytes:
    """What its file would be, had Claude Code added a server without `pml connect`; adds it to the real one as well."""
    command: list[str | Path] = [claude, "mcp", "add", "--scope", "user", "weather", "--", "uvx", "weather-mcp"]
    file = ada.file("claude-code")
    connected = file.read_bytes()
    file.write_bytes(before)
    ada.run(*command)
    expected = file.read_bytes()
    file.write_bytes(connected)
    ada.run(*command)
    return expected


def secrets_in(text: str) -> list[str]:
    return [name for name, value in SECRETS.items() if value in text]


def files_with_secrets(ada: Ada) -> Iterator[tuple[str, list[str]]]:
    """Files with secrets beside her clients' own, and the one that `pml` keeps for them."""
    known = {*FILES.values(), ".pml/secrets.env"}
    # Claude Code keeps copies of its file, and npm notes each command line: without a gateway as well as with one.
    of_others = (".claude/backups/", ".npm/_logs/")
    for path in ada.home.rglob("*"):
        name = path.relative_to(ada.home).as_posix()
        if name in known or name.startswith(of_others) or "node_modules" in path.parts or not path.is_file():
            continue
        if found := secrets_in(path.read_bytes().decode(errors="replace")):
            yield name, found


def processes_left(ada: Ada) -> list[str]:
    """The command lines of processes in this home, once they had time to end."""
    end = time.monotonic() + END_SECONDS
    while (left := _processes(ada)) and time.monotonic() < end:
        time.sleep(0.1)
    return left


def _processes(ada: Ada) -> list[str]:
    left = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdigit() and f"HOME={ada.home}\0".encode() in (process / "environ").read_bytes():
                left.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return left
