"""Tables stay within the terminal, and nothing of a cell is lost."""

from __future__ import annotations

import pytest

from pml_gateway.cli.output import print_table

NAME = "github__create_pull_request_review_comment_on_a_line_of_a_file"


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> int:
    width = int(getattr(request, "param", 80))
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    return width


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.usefixtures("columns")
def test_what_fits_stands_in_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("tool", "state", "description"), [("a__b", "ok", "Reads."), ("a__c", "stale", "Writes.")])
    assert printed(capsys) == ["tool  state  description", "a__b  ok     Reads.", "a__c  stale  Writes."]


@pytest.mark.usefixtures("columns")
def test_a_long_text_wraps_in_its_column_while_that_is_readable(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("tool", "description"), [("a__b", "word " * 20)])
    lines = printed(capsys)
    assert len(lines) == 3
    assert all(line.startswith("      word") for line in lines[2:])


@pytest.mark.usefixtures("columns")
def test_beside_a_long_name_a_text_has_lines_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("tool", "state", "description"), [(NAME, "ok", "word " * 20), ("a__b", "ok", "")])
    assert printed(capsys) == [
        f"{'tool':{len(NAME)}}  state",
        "    description",
        f"{NAME}  ok",
        f"    {'word ' * 15}".rstrip(),
        f"    {'word ' * 5}".rstrip(),
        f"{'a__b':{len(NAME)}}  ok",
    ]


@pytest.mark.parametrize("columns", [20, 40, 80, 120], indirect=True)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_no_line_is_wider_than_the_terminal_and_every_letter_is_there(
    columns: int, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    headings = ("tool", "server", "state", "calls", "why")[:count]
    row = (NAME, "github", "connected, tools stale", 1234, "score below the threshold (0.6), place 12")[:count]
    print_table(headings, [row])
    lines = printed(capsys)
    assert max(map(len, lines)) <= columns
    letters = sorted("".join(lines).replace(" ", ""))
    assert letters == sorted("".join(map(str, (*headings, *row))).replace(" ", ""))


@pytest.mark.usefixtures("columns")
def test_no_rows_leave_the_headings(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("tool", "server"), [])
    assert printed(capsys) == ["tool  server"]


@pytest.mark.usefixtures("columns")
def test_what_a_server_wrote_neither_obeys_nor_marks_up(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("tool", "description"), [("a", "[red]x[/red]\x1b[2J")])
    assert "[red]x[/red]\ufffd[2J" in printed(capsys)[1]
