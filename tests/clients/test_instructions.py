from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.clients.connect import ConnectedFiles
from pml_gateway.clients.discover import known_client
from pml_gateway.clients.instructions import BEGIN, END, MAX_BYTES, MAX_BYTES_TO_UNDO, added, instructions_file, removed
from pml_gateway.clients.jsonc import BOM
from pml_gateway.errors import ConfigurationError
from tests.support.examples import examples

from .machine import Machine

LINES = "## Tools\n\n- one\n- two\n"


def bytes_of(path: Path) -> bytes:
    return path.read_bytes()


def add(machine: Machine, file: Path, lines: str = LINES, client: str = "codex") -> None:
    added(file, machine.project, lines).write(ConnectedFiles(machine.paths), (client,))


def remove(machine: Machine, file: Path) -> None:
    removed(file, machine.project).write(ConnectedFiles(machine.paths), ())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "# Rules",
        "# Rules\n",
        "# Rules\r\n\r\n- one\r\n",
        f"{BOM}# Rules\n",
        BOM,
        "a\n\n\n",
        "\n\na",
        "a\r\n\r\nb",
    ],
)
def test_taking_the_lines_out_leaves_every_byte_and_the_mode(machine: Machine, text: str) -> None:
    file = machine.write("project/AGENTS.md", text)
    file.chmod(0o640)

    add(machine, file)

    written = bytes_of(file)
    assert all(line.encode() in written for line in (BEGIN, "- one", "- two", END))
    assert written.count(b"\r\n") == (written.count(b"\n") if "\r\n" in text else 0)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert ConnectedFiles(machine.paths).instructions("codex") == {file: ("codex",)}
    remove(machine, file)
    assert bytes_of(file) == text.encode()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert ConnectedFiles(machine.paths).instructions() == {}


@settings(max_examples=examples(100))
@given(text=st.text("ab #\r\n`", max_size=30), after=st.text("xy\n", max_size=9))
def test_what_is_written_after_the_lines_stays_and_the_rest_comes_back(
    tmp_path_factory: pytest.TempPathFactory, text: str, after: str
) -> None:
    folder = tmp_path_factory.mktemp("project")
    file = folder / "AGENTS.md"
    file.write_bytes(text.encode())
    file.write_bytes((added(file, folder, LINES).after + after).encode())

    # A line that goes on behind the mark is no mark.
    joined = bool(after.strip("\n")) and not text.endswith("\n") and not after.startswith("\n")
    if not joined:
        assert removed(file, folder).after == text + after


def test_lines_of_another_version_are_replaced_where_they_stand(machine: Machine) -> None:
    file = machine.write("project/AGENTS.md", "# Rules\n")
    add(machine, file, "- old\n")
    file.write_text(file.read_text() + "\n## Mine\n")

    add(machine, file)
    once = file.read_text()
    add(machine, file)

    assert file.read_text() == once == f"# Rules\n\n{BEGIN}\n{LINES}{END}\n\n## Mine\n"
    remove(machine, file)
    assert file.read_text() == "# Rules\n\n## Mine\n"


@pytest.mark.parametrize(
    ("client", "there", "chosen"),
    [
        ("claude-code", ("AGENTS.md", "CLAUDE.md"), "CLAUDE.md"),
        ("claude-code", ("AGENTS.md",), "AGENTS.md"),
        ("codex", ("AGENTS.md", "CLAUDE.md"), "AGENTS.md"),
        ("codex", ("CLAUDE.md",), None),
        ("zed", ("AGENTS.md", "CLAUDE.md"), "AGENTS.md"),
        ("zed", ("CLAUDE.md",), "CLAUDE.md"),
        ("gemini-cli", ("AGENTS.md", "CLAUDE.md"), None),
        ("claude-desktop", ("AGENTS.md", "CLAUDE.md"), None),
    ],
)
def test_the_file_that_the_client_reads_is_taken(
    machine: Machine, client: str, there: tuple[str, ...], chosen: str | None
) -> None:
    for name in there:
        machine.write(f"project/{name}", "# Rules\n")
    found = instructions_file(known_client(client), (machine.project / "src", machine.project))
    assert found == (machine.project / chosen if chosen else None)


def test_a_link_within_the_project_is_followed_and_kept(machine: Machine) -> None:
    file = machine.write("project/AGENTS.md", "# Rules\n")
    link = machine.project / "CLAUDE.md"
    link.symlink_to("AGENTS.md")

    add(machine, link)

    assert link.is_symlink()
    assert BEGIN in file.read_text()
    assert list(ConnectedFiles(machine.paths).instructions()) == [file]
    remove(machine, link)
    assert file.read_text() == "# Rules\n"


def outside(machine: Machine) -> str:
    machine.write("elsewhere/AGENTS.md", "# Of others\n")
    (machine.project / "AGENTS.md").symlink_to(machine.root / "elsewhere" / "AGENTS.md")
    return f"a link to {machine.root}/elsewhere/AGENTS.md, outside of {machine.project}"


def read_only(machine: Machine) -> str:
    machine.write("project/AGENTS.md", "# Rules\n").chmod(0o444)
    return "is read-only"


def huge(machine: Machine) -> str:
    machine.write("project/AGENTS.md", "x" * (MAX_BYTES_TO_UNDO + 1))
    return "is larger than 16,000,000 bytes"


def binary(machine: Machine) -> str:
    machine.write("project/AGENTS.md", "").write_bytes(b"\xff\xfe#\x00")
    return "is not valid UTF-8"


def pipe(machine: Machine) -> str:
    os.mkfifo(machine.project / "AGENTS.md")
    return "not a regular file"


def folder(machine: Machine) -> str:
    (machine.project / "AGENTS.md").mkdir()
    return "not a regular file"


def dangling(machine: Machine) -> str:
    (machine.project / "AGENTS.md").symlink_to("nothing.md")
    return "cannot be read: No such file"


def without_end(machine: Machine) -> str:
    machine.write("project/AGENTS.md", f"# Rules\n\n{BEGIN}\n- one\n\n## Mine\n")
    return "(line 3: begin)"


def without_begin(machine: Machine) -> str:
    machine.write("project/AGENTS.md", f"- one\r\n{END}\r\n")
    return "(line 2: end)"


def twice(machine: Machine) -> str:
    machine.write("project/AGENTS.md", f"{BEGIN}\n{END}\n{BEGIN}\n{END}\n")
    return "(line 1: begin, line 2: end, line 3: begin, line 4: end)"


def turned(machine: Machine) -> str:
    machine.write("project/AGENTS.md", f"{END}\n# Mine\n{BEGIN}\n")
    return "(line 1: end, line 3: begin)"


@pytest.mark.parametrize(
    "arranged",
    [outside, read_only, huge, binary, pipe, folder, dangling, without_end, without_begin, twice, turned],
)
def test_a_file_that_cannot_be_edited_is_refused_and_left_alone(
    machine: Machine, arranged: Callable[[Machine], str]
) -> None:
    expected = arranged(machine)
    file = machine.project / "AGENTS.md"
    before = bytes_of(file) if file.is_file() else None

    with pytest.raises(ConfigurationError) as refused:
        added(file, machine.project, LINES)
    assert expected.replace("16,", "1,") in str(refused.value)
    assert refused.value.hint
    with pytest.raises(ConfigurationError, match=re.escape(expected)):
        removed(file, machine.project)

    assert (bytes_of(file) if file.is_file() else None) == before
    assert ConnectedFiles(machine.paths).instructions() == {}


def test_lines_come_out_of_a_file_that_they_made_too_large_for_lines(machine: Machine) -> None:
    file = machine.write("project/AGENTS.md", "x" * MAX_BYTES)
    add(machine, file)
    with pytest.raises(ConfigurationError, match="is larger than 1,000,000 bytes"):
        add(machine, file)
    remove(machine, file)
    assert bytes_of(file) == b"x" * MAX_BYTES


def test_a_file_that_changed_since_it_was_read_is_not_overwritten(machine: Machine) -> None:
    file = machine.write("project/AGENTS.md", "# Rules\n")
    edit = added(file, machine.project, LINES)
    file.write_text("# Others\n")

    with pytest.raises(ConfigurationError, match="was changed by another program"):
        edit.write(ConnectedFiles(machine.paths), ("codex",))

    assert file.read_text() == "# Others\n"
    assert ConnectedFiles(machine.paths).instructions() == {}


def _pipe(file: Path, outside: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _link(file: Path, outside: Path) -> None:
    file.unlink()
    file.symlink_to(outside / file.name)


def _folder(file: Path, outside: Path) -> None:
    file.unlink()
    file.mkdir()


def _linked_parent(file: Path, outside: Path) -> None:
    file.unlink()
    file.parent.rmdir()
    file.parent.symlink_to(outside)


@pytest.mark.parametrize("is_linked", [False, True], ids=["file", "link"])
@pytest.mark.parametrize("swapped", [_pipe, _link, _folder, _linked_parent])
def test_what_took_the_place_of_the_file_meanwhile_is_neither_waited_for_nor_written(
    machine: Machine, swapped: Callable[[Path, Path], None], is_linked: bool
) -> None:
    file = machine.write("project/docs/AGENTS.md", "# Rules\n")
    other = machine.write("elsewhere/AGENTS.md", "# Rules\n")
    named = file
    if is_linked:
        named = machine.project / "AGENTS.md"
        named.symlink_to(file)
    edit = added(named, machine.project, LINES)
    swapped(file, other.parent)
    connections = ConnectedFiles(machine.paths)

    with pytest.raises(ConfigurationError):
        edit.write(connections, ("codex",))

    assert bytes_of(other) == b"# Rules\n"
    assert connections.instructions() == {}


def test_the_preview_masks_what_looks_like_a_key(machine: Machine) -> None:
    file = machine.write("project/AGENTS.md", "API_KEY=ghp_0123456789abcdefghijABCDEFGHIJ012345\n")
    diff = added(file, machine.project, LINES).diff
    assert "ghp_0123456789abcdefghijABCDEFGHIJ012345" not in diff
    assert "+- one" in diff
