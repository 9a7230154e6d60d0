"""The reader of command lines: whatever they are, what it says of a word is said of one that is there."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pml_gateway.config.commands.command_line import first_command, told_apart

COMMANDS = ["npx", "npm", "uvx", "uv", "docker", "deno", "python", "node", "java", "sh", "cmd", "env", "make", "x"]
WORDS = st.sampled_from(
    ["-c", "--call", "-p", "--package", "exec", "run", "tool", "--", "-m", "-e", "-jar", "-v", "/c", "/k", "a", ".", ""]
)


@given(st.sampled_from(COMMANDS), st.lists(WORDS | st.text(string.printable, max_size=6), max_size=6))
def test_every_position_is_that_of_a_word(command: str, args: list[str]) -> None:
    found = told_apart([command, *args])
    for positions in (found.choosing, found.paths, found.mounts, found.lines, found.code, {found.command}):
        assert positions <= {*range(len(args) + 1)}
    assert bool(found.runner) == bool(found.packages)


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("npx -y a", ["npx", "-y", "a"]),
        ("exec A=1 npx a 2>/dev/null", ["npx", "a", "2"]),
        ("TOKEN='a b' uvx a; true", ["uvx", "a"]),
        ("cd /x && npx a", ["cd", "/x"]),
        ("A=1", []),
        ("unclosed '", []),
        ("", []),
    ],
)
def test_the_first_command_of_a_line_is_found(line: str, command: list[str]) -> None:
    assert first_command(line) == command
