"""The user unit: whatever stands in paths, systemd starts what was meant, by its own rules of reading."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pml_gateway.service.program import Program, can_be_written
from pml_gateway.service.systemd import unit_program, unit_text
from tests.support.examples import examples

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
    "line\u2028separator",
)
WORDS = st.one_of(st.sampled_from(NASTY), st.text(min_size=1, max_size=30)).filter(can_be_written)
PATHS = WORDS.map(lambda word: f"/opt/{word}/pml")
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
@example("/home/a b/it's/pml", ["--config=/x y/100%.yaml"])
@example('/home/"q"/pml', ["$HOME"])
@example("/home/$USER/pml", [])
def test_systemd_starts_the_words_that_were_meant(path: str, options: list[str]) -> None:
    text = unit_text(Program((path, "up", *options), {}))
    words = read_by_systemd(text, "ExecStart", has_variables=True)
    # systemd takes none of these in the path of a program: a shell starts it then.
    is_plain = not set(path) & set("\"'\\$")
    assert words[0] == (path if is_plain else "/bin/sh")
    assert words[0 if is_plain else 3 :] == [path, "up", *options]
    assert all("\n" not in line for line in text.splitlines())


@settings(max_examples=examples(40))
@given(WORDS)
def test_variables_hold_what_was_meant(word: str) -> None:
    text = unit_text(Program(("/opt/pml", "up"), {"PML_HOME": f"/{word}"}))
    assert read_by_systemd(text, "Environment", has_variables=False) == [f"PML_HOME=/{word}"]


@settings(max_examples=examples(40))
@given(PATHS, st.lists(WORDS, max_size=2), WORDS, st.integers(0, 5))
def test_what_a_unit_starts_is_read_back(path: str, options: list[str], word: str, folders: int) -> None:
    program = Program((path, "up", *options), {"PML_HOME": f"/{word}", "PATH": f"/bin:/{word}"})
    assert unit_program(unit_text(program, folders)) == program


def test_a_unit_that_was_edited_past_recognition_starts_nothing_that_is_known() -> None:
    assert unit_program("[Service]\nExecStart=\n") is None
    assert unit_program("") is None


def test_the_shell_that_goes_round_systemd_starts_the_program_with_its_words(tmp_path: Path) -> None:
    folder = tmp_path / "a \"b\" $HOME 'c' \\ %h"
    folder.mkdir()
    program = folder / "pml"
    program.symlink_to("/bin/echo")
    words = read_by_systemd(unit_text(Program((str(program), "$x", 'a "b"'), {})), "ExecStart", has_variables=True)
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == '$x a "b"\n'


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", ["plain", "a b 100%h ü", "$HOME", 'say "x" it\'s \\'])
def test_systemd_itself_finds_no_fault(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / name
    folder.mkdir()
    program = folder / "pml"
    program.symlink_to(sys.executable)
    unit = tmp_path / "pml-gateway.service"
    environ = {"PML_HOME": str(folder), "PATH": f"/bin:{folder}"}
    unit.write_text(unit_text(Program((str(program), "up", "--foreground", name), environ), 3), encoding="utf-8")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", str(unit)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
