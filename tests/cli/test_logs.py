"""`pml upstreams logs`: the end of a server's stderr, without its secrets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.processes.child_log import MAX_LOG_BYTES, LogReader, log_path, open_child_log
from pml_gateway.telemetry.log_file import old_log
from tests.support.command_line import run_here
from tests.support.process import environment, write_settings

SERVER: dict[str, Any] = {
    "command": "never-started",
    "args": ["--key", "${env:ARGUMENT_KEY}"],
    "env": {"API_TOKEN": "tok-of-env", "MODE": "fast"},
}


def home_with(folder: Path, *lines: str) -> Path:
    """A home whose one server has written these lines."""
    write_settings(folder, {"servers": {"github-main": SERVER, "remote": {"url": "http://127.0.0.1:9/mcp"}}})
    with open_child_log(log_path(folder / "logs", "github-main")) as log:
        for line in lines:
            log.write(f"{line}\n".encode())
    return folder


def test_the_last_lines_are_shown_without_secrets(tmp_path: Path) -> None:
    home = home_with(
        tmp_path, "first", "using tok-of-env and arg-key in fast mode", "password=hunter22", "\x1b[31mred\x1b[0m"
    )
    shown = run_here(home, "upstreams", "logs", "github-main", "--lines", "3", extra={"ARGUMENT_KEY": "arg-key"})
    assert shown.returncode == 0
    *lines, red = shown.stdout.splitlines()
    assert lines == ["using *** and *** in fast mode", "password=***"]
    assert "\x1b" not in red


def test_json_is_for_programs(tmp_path: Path) -> None:
    home = home_with(tmp_path, "one", "two")
    shown = run_here(home, "upstreams", "logs", "github-main", "--json")
    assert json.loads(shown.stdout) == {"server": "github-main", "lines": ["one", "two"]}


@pytest.mark.parametrize(
    ("name", "words"),
    [("github-mian", "did you mean github-main?"), ("remote", "does not see its stderr"), ("x", "known are")],
)
def test_what_has_no_log_is_an_error_with_a_remedy(tmp_path: Path, name: str, words: str) -> None:
    refused = run_here(home_with(tmp_path), "upstreams", "logs", name)
    assert refused.returncode != 0
    assert words in refused.stderr


def test_following_goes_on_as_more_is_written(tmp_path: Path) -> None:
    home = home_with(tmp_path, "before")
    follower = subprocess.Popen(
        [sys.executable, "-m", "pml_gateway", "upstreams", "logs", "github-main", "--follow"],
        env=environment(home),
        stdout=subprocess.PIPE,
        text=True,
        cwd=home,
    )
    with follower:
        try:
            assert follower.stdout is not None
            assert follower.stdout.readline() == "before\n"
            home_with(home, "after")
            assert follower.stdout.readline() == "after\n"
        finally:
            follower.kill()


def test_a_reader_misses_nothing_when_the_log_is_rotated(tmp_path: Path) -> None:
    path = log_path(tmp_path, "up")
    reader = LogReader(path, UpstreamDefinition(command="x"))
    with open_child_log(path) as log:
        log.write(b"a\n")
        assert reader.last(10) == ["a"]
        log.write(b"b\n" + b"filler\n" * 1000)
        log.write(b"f" * (MAX_LOG_BYTES - 5000) + b"\nc\n")
        assert old_log(path).exists()
        seen = list(reader.more())
    assert (seen[0], seen[-1]) == ("b", "c")


def test_two_gateways_may_write_and_rotate_one_log(tmp_path: Path) -> None:
    path = log_path(tmp_path, "up")
    block = b"x" * 4000 + b"\n"
    with open_child_log(path) as first, open_child_log(path) as second:
        for number in range(300):
            first.write(block)
            second.write(f"second {number}\n".encode())
        first.write(b"end\n")
    assert path.read_bytes().endswith(b"end\n")
    assert path.stat().st_size + old_log(path).stat().st_size <= 2 * MAX_LOG_BYTES
    assert f"second {299}".encode() in path.read_bytes()


def test_what_a_server_was_given_by_a_file_or_its_folder_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "some.env").write_text("API_TOKEN=tok-of-file\nMODE=quick\n")
    entry = {"command": "x", "cwd": "${env:PML_TEST_FOLDER}", "env_file": str(tmp_path / "some.env")}
    write_settings(tmp_path, {"servers": {"one": entry}})
    with open_child_log(log_path(tmp_path / "logs", "one")) as log:
        log.write(b"tok-of-file in quick mode in /srv/secret-folder\n")
    shown = run_here(tmp_path, "upstreams", "logs", "one", extra={"PML_TEST_FOLDER": "/srv/secret-folder"})
    assert shown.stdout.splitlines() == ["*** in quick mode in ***"]
