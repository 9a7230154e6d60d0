"""The files of systemd and launchd: whatever stands in paths, what is started is what was meant."""

from __future__ import annotations

import plistlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pml_gateway.errors import ConfigurationError, GatewayError
from pml_gateway.service.manager import agent_text, manager_here, unit_text
from tests.support.examples import examples
from tests.support.service_managers import asked, managers_in

NASTY = (
    "a b",
    "it's",
    'say "x"',
    "100%h",
    "$HOME ${USER}",
    "back\\slash\\",
    "ünïcödé 日本",
    "#;=",
    "\\x41",
    "%%",
    "$$",
)
WORDS = st.one_of(st.sampled_from(NASTY), st.text(min_size=1, max_size=30)).filter(str.isprintable)
NOT_IN_PROGRAMS = frozenset("\"'\\$")
PATHS = WORDS.filter(lambda word: not NOT_IN_PROGRAMS & {*word}).map(lambda word: f"/opt/{word}/pml")
_ESCAPES = {"n": "\n", "t": "\t", "s": " ", '"': '"', "'": "'", "\\": "\\"}


def read_by_systemd(text: str, key: str, *, has_variables: bool) -> list[str]:
    """The words of a line, by systemd.syntax(7), and systemd.unit(5) and systemd.service(5) on `%` and `$`."""
    (value,) = re.findall(rf"^{key}=(.*)$", text, re.MULTILINE)
    words, at = [], 0
    while at < len(value):
        word, quote = "", ""
        while at < len(value) and (quote or value[at] != " "):
            character = value[at]
            if quote and character == quote:
                quote = ""
                assert value[at + 1 : at + 2] in ("", " "), "quotes are around a whole word"
            elif not quote and character in "\"'":
                assert word == ""
                quote = character
            elif character == "\\":
                at += 1
                word += _ESCAPES[value[at]]
            else:
                word += character
            at += 1
        assert not quote
        words.append(word)
        at += 1
    words = [re.sub("%(.)", lambda found: {"%": "%"}[found[1]], word) for word in words]
    if has_variables:
        words = [words[0], *(re.sub(r"\$(.)", lambda found: {"$": "$"}[found[1]], word) for word in words[1:])]
    return words


@settings(max_examples=examples(40))
@given(PATHS, st.lists(WORDS, max_size=3))
@example("/home/a b/pml", ["--config=/x y/100%.yaml", "$HOME", "it's"])
def test_systemd_starts_the_words_that_were_meant(path: str, options: list[str]) -> None:
    text = unit_text([path, "up", *options], {})
    assert read_by_systemd(text, "ExecStart", has_variables=True) == [path, "up", *options]


@pytest.mark.parametrize("path", ["/home/it's/pml", '/home/"q"/pml', "/home/$USER/pml", "/home/\\/pml"])
def test_a_program_that_systemd_cannot_start_is_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match="systemd cannot start"):
        unit_text([path], {})


@settings(max_examples=examples(40))
@given(WORDS)
def test_variables_hold_what_was_meant(word: str) -> None:
    text = unit_text(["/opt/pml", "up"], {"PML_HOME": f"/{word}"})
    assert read_by_systemd(text, "Environment", has_variables=False) == [f"PML_HOME=/{word}"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", ["plain", "a b 100%h ü"])
def test_systemd_itself_finds_no_fault(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / name
    folder.mkdir()
    program = folder / "pml"
    program.symlink_to(sys.executable)
    unit = tmp_path / "pml-gateway.service"
    environ = {"PML_HOME": str(folder), "PATH": f"/bin:{folder}"}
    unit.write_text(unit_text([str(program), "up", "--foreground", name, '$HOME "x" \\'], environ), encoding="utf-8")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", str(unit)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


@settings(max_examples=examples(40))
@given(st.lists(WORDS, min_size=1, max_size=4), WORDS)
@example(["<&>", "]]>", "--"], "$HOME")
def test_launchd_starts_the_words_that_were_meant(words: list[str], home: str) -> None:
    values = plistlib.loads(agent_text(["/opt/pml", *words], {"PML_HOME": home}, "/logs/gateway.log").encode())
    assert values["ProgramArguments"] == ["/opt/pml", *words]
    assert values["EnvironmentVariables"] == {"PML_HOME": home}
    assert values["KeepAlive"] == {"SuccessfulExit": False}


@pytest.mark.parametrize("path", ["/a\nb", "/a\udcffb", "/a\uffffb"])
def test_paths_that_no_file_can_hold_are_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match="no file of systemd or launchd can hold"):
        manager_here({"PML_HOME": path}, platform="linux")


def test_windows_has_another_way() -> None:
    with pytest.raises(ConfigurationError, match="there is no service for win32"):
        manager_here({}, platform="win32")


def test_an_agent_is_loaded_in_place_of_the_one_before_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "managers"
    monkeypatch.setenv("PATH", managers_in(folder))
    manager = manager_here({"HOME": str(tmp_path)}, platform="darwin")
    assert manager.installed() is None
    manager.install()
    manager.install()
    assert manager.installed() == manager.text
    assert [line.split()[1] for line in asked(folder)] == ["bootout", "bootstrap"] * 2
    manager.uninstall()
    assert not manager.file.exists()
    (folder / "no-session").touch()
    with pytest.raises(GatewayError, match="Could not find domain"):
        manager.install()
    assert manager.file.exists()
