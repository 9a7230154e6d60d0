"""The audit is evidence: an access is one line that nobody else can forge; what must be recorded is, or is refused."""

from __future__ import annotations

import json
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.activity.audit import AuditFile, line_of
from pml_gateway.config.settings import Settings
from tests.support.memory import paths_in
from tests.support.process import environment, running_gateway
from tests.support.raw import result_modern
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

KEYS = {"ADA": "key-of-ada-0123456789", "BOB": "key-of-bob-0123456789"}
CLIENTS = {"ada": {"key": "${env:ADA}", "deny": ["up:secret"]}, "bob": {"key": "${env:BOB}"}}
FORGED = 'x"}\n{"event": "access", "client": "bob"}\u2028\x1b[2J'


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)


def upstream(on_call: Callable[[], None] = lambda: None) -> ScriptedServer:
    async def handler(_: Any, params: dict[str, Any]) -> dict[str, Any]:
        on_call()
        return text_result("done")

    return ScriptedServer([tool("look", annotations={"readOnlyHint": True}), tool("secret")], handler)


def audit_of(home: Path) -> Path:
    return Path(paths_in(home).home, "audit.jsonl")


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


async def call(served: Serving, name: str, /, **arguments: Any) -> dict[str, Any]:
    return await served.call(name, arguments, key=KEYS["ADA"])


async def test_with_two_clients_each_access_is_a_line_of_a_private_file(tmp_path: Path) -> None:
    async with serving(tmp_path, {"up": upstream()}, clients=CLIENTS) as served:
        await call(served, "up__look", at=1, token="abcdef123456")
        await call(served, "up__secret")
        await call(served, "call_tool", name=FORGED, arguments={})
    look, secret, forged, outer = records(audit_of(tmp_path))
    assert (look["client"], look["server"], look["tool"], look["decision"]) == ("ada", "up", "look", "allowed")
    assert (look["outcome"], look["effect"], look["sends"]) == ("OK", "read", 1)
    assert (look["kept"], look["arguments"].keys()) == ("keys", {"at", "token"})
    assert (secret["decision"], secret["name"], secret["rule"]) == (
        "refused",
        "up__secret",
        "denied to this client: up:secret",
    )
    assert (forged["client"], forged["name"], outer["name"]) == ("ada", FORGED, "call_tool")
    assert b"\x1b" not in audit_of(tmp_path).read_bytes()
    assert "\u2028" not in audit_of(tmp_path).read_text(encoding="utf-8")
    assert stat.S_IMODE(audit_of(tmp_path).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("sections", "is_kept"),
    [
        ({}, False),
        ({"clients": {"ada": CLIENTS["ada"]}}, False),
        ({"clients": CLIENTS, "audit": {"path": "off"}}, False),
        ({"clients": {"ada": CLIENTS["ada"]}, "audit": {"required": True}}, True),
    ],
)
async def test_one_client_needs_no_audit_and_it_can_be_switched(
    tmp_path: Path, sections: dict[str, Any], is_kept: bool
) -> None:
    async with serving(tmp_path, {"up": upstream()}, **sections) as served:
        await call(served, "up__look")
    assert audit_of(tmp_path).exists() is is_kept


def test_a_required_audit_needs_a_file() -> None:
    with pytest.raises(ValueError, match=r"audit\.required needs a file"):
        Settings.model_validate({"audit": {"path": "off", "required": True}})


@pytest.mark.parametrize("kept", ["masked", "whole"])
async def test_values_of_arguments_are_kept_without_secrets(tmp_path: Path, kept: str) -> None:
    path = tmp_path / "elsewhere" / "calls.jsonl"
    audit = {"path": str(path), "arguments": kept}
    given = {"title": "hello", "token": "abcdef123456", "note": f"the key is {KEYS['BOB']}"}
    async with serving(tmp_path, {"up": upstream()}, clients=CLIENTS, audit=audit) as served:
        await call(served, "up__look", **given)
    [look] = records(path)
    assert (look["kept"], look["arguments"]["title"], look["arguments"]["token"]) == (kept, "hello", "***")
    assert KEYS["BOB"] not in path.read_text()


async def test_what_must_be_recorded_and_cannot_is_not_sent(tmp_path: Path) -> None:
    server, path = upstream(), audit_of(tmp_path)
    async with serving(tmp_path, {"up": server}, audit={"required": True}) as served:
        assert not (await call(served, "up__look")).get("isError")
        path.unlink()
        path.mkdir()
        refused = await call(served, "up__look")
        path.rmdir()
        assert not (await call(served, "up__look")).get("isError")
    error = refused["structuredContent"]["error"]
    assert (error["code"], error["details"]["executed"]) == ("INTERNAL", "no")
    assert "its record is required" in error["message"]
    assert len(server.calls) == 2
    begun, ended = records(path)
    assert (begun["event"], begun["name"], ended["event"], ended["outcome"]) == ("begin", "up__look", "access", "OK")
    assert begun["id"] == ended["id"]


async def test_an_answer_whose_record_cannot_be_written_is_kept_back(tmp_path: Path) -> None:
    path = audit_of(tmp_path)

    def break_it() -> None:
        path.unlink()
        path.mkdir()

    async with serving(tmp_path, {"up": upstream(break_it)}, audit={"required": True}) as served:
        refused = await call(served, "up__look")
    assert refused["structuredContent"]["error"]["details"]["executed"] == "unknown"
    assert "done" not in str(refused)


def test_a_torn_line_spoils_no_other_and_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b'{"number": 0}\n{"numb')
    file = AuditFile(path)
    file.append([line_of({"number": 1}), line_of({"number": 2})])
    file.close()
    assert path.read_bytes().split(b"\n") == [b'{"number": 0}', b'{"numb', b'{"number": 1}', b'{"number": 2}', b""]
    assert "the last line is torn" in caplog.text


WRITER = """
import sys
from pathlib import Path
from pml_gateway.activity.audit import AuditFile, line_of
file = AuditFile(Path(sys.argv[1]), 20_000)
for number in range(2000):
    file.append([line_of({"writer": sys.argv[2], "number": number})])
"""


def test_processes_that_share_a_file_and_rotate_it_lose_no_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    command = [sys.executable, "-c", WRITER, str(path)]
    writers = [subprocess.Popen([*command, name], env=environment(tmp_path)) for name in "ab"]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    files = sorted(tmp_path.glob("audit.jsonl*"))
    found = [(each["writer"], each["number"]) for file in files for each in records(file)]
    assert sorted(found) == [(name, number) for name in "ab" for number in range(2000)]
    assert len(files) > 3


def test_a_killed_gateway_has_recorded_each_call_that_it_answered(tmp_path: Path) -> None:
    with running_gateway(tmp_path, {"audit": {"required": True}, "servers": {"up": {"command": "none"}}}) as gateway:
        for number in range(20):
            result_modern(gateway.url, "tools/call", {"name": f"tool{number}", "arguments": {}})
        gateway.stop(signal.SIGKILL)
    assert [each["name"] for each in records(tmp_path / "audit.jsonl")] == [f"tool{number}" for number in range(20)]


@pytest.mark.skipif(shutil.which("mkfifo") is None, reason="there are no FIFOs")
def test_a_place_that_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    subprocess.run(["mkfifo", str(tmp_path / "audit.jsonl")], check=True)
    with pytest.raises(OSError):
        AuditFile(tmp_path / "audit.jsonl").append([line_of({})])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no such device")
def test_a_device_is_no_audit_and_keeps_its_mode(tmp_path: Path) -> None:
    before = Path("/dev/full").stat().st_mode
    with pytest.raises(OSError, match="not a regular file"):
        AuditFile(Path("/dev/full")).append([line_of({})])
    assert Path("/dev/full").stat().st_mode == before


@pytest.mark.parametrize("target", ["the same file", "another file", "nothing"])
def test_a_link_that_takes_the_place_of_the_file_is_not_written_to(target: str, tmp_path: Path) -> None:
    path, moved = tmp_path / "audit.jsonl", tmp_path / "moved"
    file = AuditFile(path)
    file.append([line_of({"number": 0})])
    path.rename(moved)
    if target == "another file":
        moved = tmp_path / "other"
        moved.write_bytes(b"")
    before = moved.read_bytes()
    path.symlink_to(moved if target != "nothing" else tmp_path / "nothing")
    with pytest.raises(OSError):
        file.append([line_of({"number": 1})])
    assert moved.read_bytes() == before and not (tmp_path / "nothing").exists()
    path.unlink()
    file.append([line_of({"number": 2})])
    file.close()
    assert records(path) == [{"number": 2}]


FULL = """
import resource
import sys
from pathlib import Path
from pml_gateway.activity.audit import AuditFile, line_of
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
file = AuditFile(Path(sys.argv[1]))
file.append([line_of({"number": 0})])
resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
waiting = [line_of({"number": 1})]
for _ in range(2):
    try:
        file.append(waiting)
        sys.exit("it was written")
    except OSError:
        pass
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
file.append(waiting)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no limits of files")
def test_on_a_full_disk_a_line_is_refused_and_written_whole_once_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    subprocess.run([sys.executable, "-c", FULL, str(path)], env=environment(tmp_path), check=True, timeout=60)
    lines = path.read_bytes().split(b"\n")
    assert [line for line in lines if line[-1:] == b"}"] == [b'{"number": 0}', b'{"number": 1}']
