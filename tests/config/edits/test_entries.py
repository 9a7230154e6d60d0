"""Entries of `servers:` are taken out and renamed; every other character of the file stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.config.document import parse
from pml_gateway.config.edits.edit import set_values
from pml_gateway.config.edits.entries import with_new_name, with_texts, without_entry
from pml_gateway.errors import ConfigurationError
from tests.support.examples import examples

PATH = Path("config.yaml")

TEXT = """\
# mine
gateway:
  intent: "work"   # every day

servers:
  # all of them
  a:
    command: npx   # the first
    args: [-y, a]
    # cwd: /tmp

  # about b
  b: {command: b, env: {X: "1"}}  # one line
  # about c,
  # in two lines
  c:
    command: c
    env:
      TEXT: |
        several
        lines
# the clients
clients: {}
"""


def test_an_entry_goes_with_what_is_said_of_it_alone() -> None:
    assert without_entry(TEXT, ("servers", "b"), PATH) == TEXT.replace(
        '  # about b\n  b: {command: b, env: {X: "1"}}  # one line\n', ""
    )
    without_c = without_entry(TEXT, ("servers", "c"), PATH)
    assert without_c == TEXT[: TEXT.index("  # about c")] + TEXT[TEXT.index("# the clients") :]
    without_a = without_entry(TEXT, ("servers", "a"), PATH)
    assert without_a == TEXT.replace("  a:\n    command: npx   # the first\n    args: [-y, a]\n    # cwd: /tmp\n", "")


def test_the_last_entry_leaves_an_empty_section() -> None:
    text = TEXT
    for name in ("a", "b", "c"):
        text = without_entry(text, ("servers", name), PATH)
    assert "servers:\n  # all of them\n" in text
    assert "\n  d:\n    command: d\n" in set_values(text, {"servers": {"d": {"command": "d"}}}, PATH)
    assert parse(text, "user", PATH).values["servers"] is None


@pytest.mark.parametrize(
    ("text", "name", "after"),
    [
        ("servers: {a: {command: a}, b: {command: b}}\n", "a", "servers: {b: {command: b}}\n"),
        ("servers: {a: {command: a}, b: {command: b}}\n", "b", "servers: {a: {command: a}}\n"),
        ("servers: {a: {command: a}}\n", "a", "servers: {}\n"),
        ('{"servers": {\n  "a": {"url": "x"},\n  "b": 1\n}}', "b", '{"servers": {\n  "a": {"url": "x"}\n}}'),
        (
            "servers:\r\n  a:\r\n    command: a\r\n  b:\r\n    command: b\r\n",
            "a",
            "servers:\r\n  b:\r\n    command: b\r\n",
        ),
        ("servers:\n  a: &x\n    command: a\n  b:\n    command: b", "b", "servers:\n  a: &x\n    command: a\n"),
        ("servers:\n  b:\n  a: {command: a}\n", "b", "servers:\n  a: {command: a}\n"),
    ],
)
def test_every_way_to_write_a_section(text: str, name: str, after: str) -> None:
    assert without_entry(text, ("servers", name), PATH) == after


def test_what_others_refer_to_is_left_to_a_person() -> None:
    text = "servers:\n  a: &x\n    command: a\n  b: *x\n"
    with pytest.raises(ConfigurationError, match="by hand"):
        without_entry(text, ("servers", "a"), PATH)
    assert without_entry(text, ("servers", "b"), PATH) == "servers:\n  a: &x\n    command: a\n"


def test_an_entry_gets_another_name_in_its_place() -> None:
    assert with_new_name(TEXT, "servers", "b", "b2", PATH) == TEXT.replace("  b: {", "  b2: {")
    quoted = '{"servers": {"a": {"url": "x"}}}'
    assert with_new_name(quoted, "servers", "a", "b c", PATH) == quoted.replace('"a"', '"b c"')


def test_texts_change_where_they_stand() -> None:
    text = "gateway:\n  blacklisted_tools:\n    - a:x  # never\n    - 'a:y'\n"
    first, second = (("gateway", "blacklisted_tools", at) for at in (0, 1))
    after = with_texts(text, {first: ["b:x"], second: ["b:y"]}, PATH)
    assert after == 'gateway:\n  blacklisted_tools:\n    - "b:x"  # never\n    - "b:y"\n'


def test_a_text_of_a_list_becomes_several() -> None:
    lines = "gateway:\r\n  blacklisted_tools:\r\n    - a:x  # never\r\n    - 'a:y'\r\n"
    flow = "gateway: {blacklisted_tools: [a_x, 'a_y']}\n"
    first, second = (("gateway", "blacklisted_tools", at) for at in (0, 1))

    assert with_texts(lines, {first: ["b:x", "a:x"], second: ["b:y"]}, PATH) == (
        'gateway:\r\n  blacklisted_tools:\r\n    - "b:x"\r\n    - a:x  # never\r\n    - "b:y"\r\n'
    )
    assert with_texts(flow, {first: ["b_x"], second: ["b_y", "a_y"]}, PATH) == (
        "gateway: {blacklisted_tools: [b_x, 'b_y', 'a_y']}\n"
    )


LINES = st.sampled_from(
    ["    # deep", "  # near", "# far", "", "    env: {A: b}", "    args:\n      - x\n      # in a list\n      - y"]
)


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.lists(LINES, max_size=4)), min_size=1, unique_by=lambda one: one[0])
)
@settings(max_examples=examples(100))
def test_what_is_taken_out_is_gone_and_nothing_else(entries: list[tuple[str, list[str]]]) -> None:
    blocks = [[f"  {name}:", f"    command: {name}", *dict.fromkeys(lines)] for name, lines in entries]
    text = "\n".join(["servers:", *(line for block in blocks for line in block), "log: {level: info}", ""])
    before = parse(text, "user", PATH).values

    for name, _ in entries:
        after = parse(without_entry(text, ("servers", name), PATH), "user", PATH).values
        assert (after["servers"] or {}) == {key: value for key, value in before["servers"].items() if key != name}
        assert after["log"] == before["log"]
        renamed = parse(with_new_name(text, "servers", name, "z", PATH), "user", PATH).values
        assert list(renamed["servers"]) == ["z" if key == name else key for key in before["servers"]]
