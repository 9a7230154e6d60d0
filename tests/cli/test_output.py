"""Tables stay within the terminal, and nothing of a cell is lost."""

from __future__ import annotations

import json

import pytest
import typer

from pml_gateway.cli.output import fail, note, print_diff, print_json, print_json_line, print_table, say, warn
from pml_gateway.errors import GatewayError
from pml_gateway.text import escaped

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


@pytest.mark.usefixtures("columns")
def test_as_many_texts_go_under_a_long_name_as_do_not_fit_beside_it_each_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept = f"2026-03-01, {'needed ' * 6}".rstrip()
    rows = [(NAME, "~/.config/a/b.json", 1, kept), ("short", "~/a.json", 2, ""), ("other", "~/b.json", 3, "until May")]
    print_table(("backup", "of", "kb", "kept"), rows)
    assert printed(capsys) == [
        f"{'backup':{len(NAME)}}  kb",
        f"{NAME}  1",
        "    of: ~/.config/a/b.json",
        f"    kept: {kept}",
        f"{'short':{len(NAME)}}  2",
        "    of: ~/a.json",
        f"{'other':{len(NAME)}}  3",
        "    of: ~/b.json  kept: until May",
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
    letters = sorted("".join(lines).replace(" ", "").replace(":", ""))
    assert letters == sorted("".join(map(str, (*headings, *row))).replace(" ", ""))


@pytest.mark.usefixtures("columns")
def test_no_rows_leave_the_headings(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("tool", "server"), [])
    assert printed(capsys) == ["tool  server"]


@pytest.mark.usefixtures("columns")
def test_what_a_server_wrote_neither_obeys_nor_marks_up(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("tool", "description"), [("a", "[red]x[/red]\x1b[2J")])
    assert "[red]x[/red]\\x1b[2J" in printed(capsys)[1]


HIDDEN = "a\x9b31m\u202eb\u200b\U000e0041\x1b]0;t\x07"


@pytest.mark.usefixtures("columns")
def test_nothing_hidden_is_printed_and_json_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    error = GatewayError(HIDDEN, hint=HIDDEN)
    for show in (print_json, print_json_line):
        show({"text": HIDDEN})
        assert json.loads(text := capsys.readouterr().out) == {"text": HIDDEN}
        assert text.isascii()
    with pytest.raises(typer.Exit):
        fail(error, as_json=True)
    assert json.loads(text := capsys.readouterr().out)["error"]["message"] == HIDDEN
    assert text.isascii()
    say(HIDDEN)
    note(HIDDEN)
    warn(HIDDEN)
    print_diff(HIDDEN)
    print_table(("a", "b"), [(HIDDEN, HIDDEN)])
    with pytest.raises(typer.Exit):
        fail(error)
    both = capsys.readouterr()
    for shown in (both.out, both.err):
        assert shown.isascii()
        assert escaped(shown, but="\n") == shown
        assert "a\\x9b31m\\u202eb\\u200b\\U000e0041\\x1b]0;t\\x07" in shown


@pytest.mark.usefixtures("columns")
def test_line_ends_of_windows_are_line_ends(capsys: pytest.CaptureFixture[str]) -> None:
    say("one\r\ntwo\rthree")
    assert printed(capsys) == ["one", "two\\rthree"]
