"""The gateway's folder: closed to other users, and done without where it cannot be written."""

from __future__ import annotations

import json
import logging
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pml_gateway.activity.database import activity_tables
from pml_gateway.demo.definitions import demo_servers
from pml_gateway.paths import Paths
from pml_gateway.storage.places import LOGS, PLACES, close_to_others, unwritable_places, warn_unwritable
from tests.support.process import environment, listening, run_pml, running_gateway
from tests.support.raw import result_modern

START_SECONDS = 60
WITHOUT_ROOM = (
    "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); os.execv(sys.argv[1], sys.argv[1:])"
)
"""Every write into a file fails, as on a full disk; Python ignores the signal that comes with it."""


def call(url: str, name: str, **arguments: object) -> str:
    """The text of a call's result, once the server that it goes to has started."""
    until = time.monotonic() + START_SECONDS
    while True:
        result = result_modern(url, "tools/call", {"name": name, "arguments": arguments})
        if not result.get("isError") or time.monotonic() > until:
            return str(result["content"][0]["text"])


def paths_of(home: Path) -> Paths:
    return Paths.from_environ({"PML_HOME": str(home), "HOME": str(home.parent)})


@contextmanager
def served(folder: Path, home: Path, *before: str) -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """A gateway with a real stdio server, whose configuration lies elsewhere than its home."""
    config = folder / "config.yaml"
    settings = {"servers": demo_servers(folder / "demo"), "activity": {"record": True}, "storage": {"results": "disk"}}
    config.write_text(json.dumps(settings))
    env = environment(home, {"PML_CONFIG": str(config), "HOME": str(folder)})
    serve = [sys.executable, "-m", "pml_gateway", "serve", "--http", "--port", "0"]
    with listening([*before, *serve], env, folder) as (_, url, log):
        yield url, log, env


def assert_it_is_said_once(log: list[str], reason: str) -> None:
    said = [line for line in log if " WARNING " in line]
    for place in PLACES:
        assert sum(place.consequence in line for line in said) == 1, said
    assert reason in said[0]
    assert not [line for line in said[1:] if reason in line], said
    assert not [line for line in log if " ERROR " in line or "Traceback" in line], log


@pytest.mark.slow
def test_a_folder_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    home = tmp_path / "file" / "home"
    with served(tmp_path, home) as (url, log, env):
        assert "42" in call(url, "calc__evaluate_expression", expression="6 * 7")
        assert "48" in call(url, "calc__evaluate_expression", expression="6 * 8")
    assert_it_is_said_once(log, "Not a directory")
    done = subprocess.run(
        [sys.executable, "-m", "pml_gateway", "doctor", "--json"], env=env, capture_output=True, text=True, check=False
    )
    [found] = [each for each in json.loads(done.stdout)["findings"] if each["subject"] == str(home)]
    assert (found["severity"], tuple(found["details"])) == ("warning", tuple(place.consequence for place in PLACES))
    assert "Not a directory" in found["what"]


@pytest.mark.slow
def test_a_full_disk_is_done_without(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    with served(tmp_path, home, sys.executable, "-c", WITHOUT_ROOM) as (url, log, _):
        assert "42" in call(url, "calc__evaluate_expression", expression="6 * 7")
    assert_it_is_said_once(log, "File too large")
    # Neither parts of files nor what was to take their place.
    assert not [path for path in home.rglob("*") if path.is_file() and path.stat().st_size]
    assert not [path for path in home.rglob(".*") if path.suffix != ".lock"]


def as_another(folder: Path) -> list[str]:
    """What to put before a command so that the modes of `folder` count for it, for root too."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("as root, this needs setpriv")
    os.chown(folder, 65534, 65534)
    return [setpriv, "--bounding-set", "-dac_override,-dac_read_search"]


@pytest.mark.slow
def test_a_folder_that_may_not_be_entered_is_done_without(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "run").mkdir()
    home.chmod(0)
    before = as_another(home)
    try:
        with served(tmp_path, home, *before) as (url, log, env):
            assert "42" in call(url, "calc__evaluate_expression", expression="6 * 7")
        assert [line for line in log if all(place.consequence in line for place in PLACES)], log
        assert not [line for line in log if " ERROR " in line or "Traceback" in line or "internal error" in line], log
        command = [*before, sys.executable, "-m", "pml_gateway", "doctor", "--json"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        found = [each["what"] for each in json.loads(done.stdout)["findings"] if each["subject"] == str(home)]
        assert any("cannot be written (Permission denied)" in what for what in found)
    finally:
        home.chmod(0o700)


def test_who_looks_whether_usage_can_be_written_leaves_its_recorder_its_locks(tmp_path: Path) -> None:
    paths = paths_of(tmp_path)
    tables = activity_tables(paths.activity_file)
    tables.change(lambda connection: connection.execute("DELETE FROM lists"))
    assert unwritable_places(paths) == []
    # Who takes itself for the last one that has the file open removes what is written first.
    write = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM lists')"
    subprocess.run([sys.executable, "-c", write, str(paths.activity_file)], check=True)
    assert paths.activity_file.with_name("activity.db-wal").exists()
    tables.close()


def test_what_is_lacking_is_one_place_or_the_whole_folder(tmp_path: Path) -> None:
    paths = paths_of(tmp_path / ".pml")
    assert unwritable_places(paths) == []
    assert not paths.home.exists()
    paths.home.mkdir()
    paths.logs_dir.symlink_to("/proc/self")
    [lack] = unwritable_places(paths)
    assert (lack.path, lack.places) == (paths.logs_dir, (LOGS,))
    assert unwritable_places(paths_of(Path("/proc/self/home")))[0].places == PLACES


def test_a_place_is_named_once_however_often_it_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("pml_gateway").propagate = True
    for _ in range(3):
        warn_unwritable(LOGS, tmp_path, OSError(28, "No space left on device"))
    warn_unwritable(LOGS, tmp_path / "below", OSError(28, "No space left on device"))
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path} cannot be written (No space left on device): {LOGS.consequence}"
    ]


def test_only_a_folder_of_ours_is_closed_to_others(tmp_path: Path) -> None:
    own, shared, link = tmp_path / ".pml", tmp_path / "shared", tmp_path / "link" / ".pml"
    own.mkdir()
    shared.mkdir()
    link.parent.mkdir()
    link.symlink_to(shared)
    own.chmod(0o755)
    shared.chmod(0o755)
    assert close_to_others(own) == 0o755
    assert close_to_others(own) is None
    assert close_to_others(shared) is None
    assert close_to_others(link) is None
    assert close_to_others(tmp_path / "missing" / ".pml") is None
    assert [stat.S_IMODE(each.stat().st_mode) for each in (own, shared)] == [0o700, 0o755]


@pytest.mark.slow
def test_nothing_that_a_gateway_makes_is_for_other_users(tmp_path: Path) -> None:
    home = tmp_path / ".pml"
    before = os.umask(0o022)
    try:
        settings = {"servers": demo_servers(tmp_path / "demo"), "gateway": {"tools_exposure": "semantic"}}
        with running_gateway(home, settings) as gateway:
            call(gateway.url, "search_tools", query="add two numbers")
            call(gateway.url, "calc__evaluate_expression", expression="6 * 7")
            assert run_pml(home, "upstreams").returncode == 0
            modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in home.rglob("*") if path.name != "config.yaml"}
    finally:
        os.umask(before)
    assert any("was open to other users (mode 755)" in line for line in gateway.log)
    modes[home] = stat.S_IMODE(home.stat().st_mode)
    assert {path.relative_to(home).parts[0] for path in modes if path != home} >= {"logs", "manifest", "run", "cache"}
    assert not {str(path): oct(mode) for path, mode in modes.items() if mode & 0o077}
