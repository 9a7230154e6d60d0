from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.clients import jsonc
from pml_gateway.clients.block import Block, ClientFileError
from pml_gateway.clients.model import FileFormat
from tests.support.examples import examples

ENTRY = {"command": "/opt/pml", "args": ["serve"]}
SERVERS = Block(FileFormat.JSON, ("mcpServers",))
CODEX = Block(FileFormat.TOML, ("mcp_servers",))

NAMES = st.sampled_from(["a", "b", "mcpServers", "théme", 'quo"te', "x/y", "//", "/*", "{", "pml-old"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**6), 10**6),
    st.sampled_from([0.5, -2.25]),
    st.text(max_size=6),
    st.sampled_from(["// no comment", "/* nor */ this", "},{", '"']),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=8,
)
GAPS = st.sampled_from(["", " ", "\n", "\n\n  ", "\t", " // note\n", "/* , } */", " /* two\nlines */ ", "//{\n  "])


@st.composite
def documents(draw: st.DrawFn, value: Any = None) -> tuple[str, dict[str, Any]]:
    """A JSON object in any layout: comments, trailing commas, byte order mark, both line endings."""
    root = value if value is not None else draw(st.dictionaries(NAMES, VALUES, max_size=4))
    if draw(st.booleans()) or "mcpServers" in root:
        root["mcpServers"] = draw(st.dictionaries(NAMES, st.fixed_dictionaries({"command": st.text(max_size=4)})))

    def written(item: Any) -> str:
        gap = draw(GAPS)
        if isinstance(item, dict):
            parts = [
                f"{draw(GAPS)}{json.dumps(key, ensure_ascii=draw(st.booleans()))}{draw(GAPS)}:{written(inner)}"
                for key, inner in item.items()
            ]
        elif isinstance(item, list):
            parts = [written(inner) for inner in item]
        else:
            return f"{gap}{json.dumps(item)}{draw(GAPS)}"
        has_comma = draw(st.booleans())
        comma = "," if parts and has_comma else ""
        start, end = "{}" if isinstance(item, dict) else "[]"
        return f"{gap}{start}{','.join(parts)}{comma}{draw(GAPS)}{end}{draw(GAPS)}"

    text = written(root)
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    return draw(st.sampled_from(["", "\ufeff"])) + text, root


def without(values: dict[str, Any], *path: str) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(values))
    section = copy
    for step in path[:-1]:
        section = section.get(step) or {}
    section.pop(path[-1], None)
    return copy


@given(documents())
@settings(max_examples=examples(300))
def test_every_layout_is_read(document: tuple[str, dict[str, Any]]) -> None:
    text, values = document

    assert jsonc.parse(text) == values


@given(documents(), st.sets(NAMES, max_size=2))
@settings(max_examples=examples(300))
def test_a_change_touches_nothing_else(document: tuple[str, dict[str, Any]], gone: set[str]) -> None:
    text, values = document

    after = SERVERS.changed(text, gone, {"pml": ENTRY})

    found = jsonc.parse(after)
    servers = found["mcpServers"]
    before = values.get("mcpServers", {})
    assert servers == {name: entry for name, entry in before.items() if name not in gone} | {"pml": ENTRY}
    assert without(found, "mcpServers") == without(values, "mcpServers")
    assert list(found) == [*values, *(["mcpServers"] if "mcpServers" not in values else [])]
    comments = ("// note", "/* , } */", "/* two")
    if not gone & before.keys():
        assert [after.count(comment) for comment in comments] == [text.count(comment) for comment in comments]
    assert ("\r\n" in after) >= ("\r\n" in text)
    assert after.startswith("\ufeff") == text.startswith("\ufeff")
    assert SERVERS.changed(after, gone, {"pml": ENTRY}) == after


@pytest.mark.parametrize(
    "text",
    [
        '{\n  "mcpServers": {\n    "x": {"command": "y"}\n  },\n  "theme": "dark"\n}\n',
        '{\n  "theme": "dark", // mine\n  "mcpServers": {\n    // first\n    "x": {"command": "y"}, // why\n  },\n}\n',
        '{"mcpServers":{"x":{"command":"y"}}}',
        '\ufeff{\r\n\t"mcpServers": {\r\n\t\t"x": {"command": "y"}\r\n\t}\r\n}\r\n',
    ],
)
def test_what_was_added_to_a_block_is_removed_without_a_trace(text: str) -> None:
    added = SERVERS.changed(text, (), {"pml": ENTRY})

    assert added != text
    assert SERVERS.changed(added, {"pml"}, {}) == text


def test_a_new_entry_looks_like_its_neighbours() -> None:
    before = '{\n    "mcpServers": {\n        "x": {"command": "y"} // mine\n    }\n}\n'

    assert SERVERS.changed(before, (), {"pml": ENTRY}) == (
        '{\n    "mcpServers": {\n        "x": {"command": "y"}, // mine\n        "pml": {\n'
        '            "command": "/opt/pml",\n            "args": [\n                "serve"\n            ]\n'
        "        }\n    }\n}\n"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n  "a": 1\n  "b": 2\n}', "line 3, column 3: ',' should stand here"),
        ('{"a": [1, 2}', "line 1, column 12: ',' should stand here, not '}'"),
        ('{\n"a": "x\n"}', "line 2, column 6: a text is not closed"),
        ("{\n/* never", "a comment is not closed"),
        ("{'a': 1}", "name in double quotes"),
        ("[]", "should hold an object"),
        ('{"mcpServers": []}', "mcpServers should be an object"),
        ('{"a": 1} x', "more behind the last bracket"),
        ('{"a": NaN}', "starts no value"),
        ('{"a": ' + "[" * 300 + "]" * 300 + "}", "nested"),
    ],
)
def test_broken_files_are_told_with_their_line(text: str, message: str) -> None:
    text = text.replace("[" * 300, "[/**/" * 300)
    with pytest.raises(ClientFileError) as raised:
        SERVERS.servers(text)

    assert message in str(raised.value)


CODEX_FILE = """\
# my codex
model = "o3"   # for now

[mcp_servers.files]
command = "npx"
args = [
  "-y",
  "[not.a.header]",   # trap
]
# about notes
[mcp_servers."my notes"]
command = 'notes'

[mcp_servers.files.env]
TEXT = \"\"\"
[mcp_servers.trap]
\"\"\"

[profiles.fast]
model = "mini"
"""


def test_tables_are_removed_and_added_and_nothing_else() -> None:
    after = CODEX.changed(CODEX_FILE, {"files"}, {"pml": ENTRY})

    assert (
        after
        == """\
# my codex
model = "o3"   # for now

# about notes
[mcp_servers."my notes"]
command = 'notes'


[profiles.fast]
model = "mini"

[mcp_servers.pml]
command = "/opt/pml"
args = ["serve"]
"""
    )
    assert tomllib.loads(after)["mcp_servers"].keys() == {"my notes", "pml"}


@pytest.mark.parametrize(
    "text",
    ["", "a = 1", "a = 1\r\n[mcp_servers.x]\r\ncommand = 'y'\r\n", "[mcp_servers]\nx.command = 'y'\n", "\ufeffa = 1\n"],
)
def test_toml_in_every_layout_is_extended(text: str) -> None:
    entry = {"command": 'C:\\bin\\"pml"\x7f', "args": ["serve"], "env": {"A B": "c"}, "on": True}

    after = CODEX.changed(text, {"x"}, {"pml": entry})

    assert CODEX.servers(after) == {"pml": entry}
    assert after.count("\n") == after.count("\r\n") or "\r\n" not in text


def test_a_table_on_one_line_is_left_to_a_person() -> None:
    with pytest.raises(ClientFileError, match="written on one line"):
        CODEX.changed("mcp_servers = { x = { command = 'y' } }\n", {"x"}, {"pml": ENTRY})


def test_broken_toml_is_told_with_its_line() -> None:
    with pytest.raises(ClientFileError, match=r"broken TOML: .*line 2"):
        CODEX.servers("a = 1\nb = \n")


SECTIONS = (
    "[mcp_servers.files]\n# which one\ncommand = 'npx'   # the program\nargs = [\n  '-y',  # yes\n]\n",
    "[ mcp_servers . files . env ]\nA = '1'\n",
    "[mcp_servers.'my notes']\nenv = { A = '1', B.c = 2 } # inline\nhttp.url = 'x'\n",
    '[theme.fast]\nmodel = """\n[mcp_servers.trap]\n"""\n',
    "  [theme]  # parent behind its child\n  a.b = 1\n",
    "[[hooks]]\nrun = ['x']\n",
)
REMARKS = st.lists(st.sampled_from(["", "# note", "  # indented", "#"]), max_size=3).map(
    lambda lines: "".join(f"{line}\n" for line in lines)
)


@st.composite
def codex_files(draw: st.DrawFn) -> tuple[list[str], str]:
    """The sections of a file, each with what stands before it, and the end of its lines."""
    sections = draw(st.permutations(SECTIONS))
    top = draw(st.sampled_from(["", "model = 'o3'  # now\n", "tui.theme = 'x'\ntui.font = { size = 1 }\n"]))
    return [top, *(draw(REMARKS) + section for section in sections)], draw(st.sampled_from(["\n", "\r\n"]))


@given(codex_files(), st.randoms(use_true_random=False), st.sets(st.sampled_from(["files", "my notes"])))
@settings(max_examples=examples(80))
def test_what_was_edited_in_between_survives_and_servers_come_back_as_they_were_written(
    file: tuple[list[str], str], random: Random, gone: set[str]
) -> None:
    sections, eol = file
    text = "".join(sections).replace("\n", eol)
    between = CODEX.changed(text, gone, {"pml": ENTRY})
    top, *pieces = re.split(r"(?m)^(?=[ ]*\[[^\]\r\n]*\][^\r\n]*$(?!\r?\n\"\"\"))", between)
    random.shuffle(pieces)
    edited = "".join(["# mine", eol, top, *pieces, eol, "[projects.'/x']", eol, "trust = true  # yes", eol])

    after = CODEX.restored(edited, {"pml"}, gone, text)

    assert tomllib.loads(after) == {**tomllib.loads(text), "projects": {"/x": {"trust": True}}}
    lines = Counter(after.splitlines(keepends=True))
    assert lines >= Counter(line for line in text.splitlines(keepends=True) if line.strip())
    assert lines >= Counter(["# mine" + eol, "trust = true  # yes" + eol])
    ours = CODEX.changed("", (), {"pml": ENTRY}).splitlines()
    back = [line for section in SECTIONS for name in gone if name in section for line in section.splitlines()]
    assert statements(after, without=back) == statements(edited, without=ours)


def statements(text: str, *, without: list[str]) -> list[str]:
    """The lines in order, but for remarks, which some have several times."""
    return [
        line
        for line in text.splitlines()
        if line.strip() not in ("", "#", "# note", "# indented") and line not in without
    ]


def test_a_server_comes_back_with_its_comments_between_the_neighbours_it_had() -> None:
    before = CODEX_FILE.replace('command = "npx"', '# mine\ncommand = "npx"  # for now')
    connected = CODEX.changed(before, {"files"}, {"pml": ENTRY})
    assert "# mine" not in connected
    edited = connected.replace("# about notes", "# about my notes").replace(
        "[profiles.fast]", "# quick\n[profiles.fast]"
    )

    after = CODEX.restored(edited + "\n[projects]\n", {"pml"}, {"files"}, before)

    assert after == (
        before.replace("# about notes", "# about my notes").replace("[profiles.fast]", "# quick\n[profiles.fast]")
        + "\n\n[projects]\n"
    )


@pytest.mark.parametrize(
    ("before", "edited", "after"),
    [
        (
            "mcp_servers.x.command = 'y' # why\na = 1\n",
            "a = 1\nb = 2\n",
            "mcp_servers.x.command = 'y' # why\na = 1\nb = 2\n",
        ),
        (
            "[mcp_servers]\nx = { command = 'y' }\n[tui]\na = 1",
            "# new\n[tui]\na = 1\n[mcp_servers]\n# empty\n",
            "# new\n[tui]\na = 1\n[mcp_servers]\nx = { command = 'y' }\n# empty\n",
        ),
        (
            "a = 1\n[mcp_servers.x]\ncommand = 'y' # why\n",
            "a = 1\nb = 2",
            "a = 1\nb = 2\n[mcp_servers.x]\ncommand = 'y' # why\n",
        ),
        (
            "\ufeff[mcp_servers.x]\ncommand = 'y' # why",
            "\ufeff[tui]\n",
            "\ufeff[mcp_servers.x]\ncommand = 'y' # why\n[tui]\n",
        ),
        # A parent that is gone leaves no room for the pair; the server comes back as a table.
        ("[mcp_servers]\nx.command = 'y' # why\n", "[tui]\n", '[tui]\n\n[mcp_servers.x]\ncommand = "y"\n'),
    ],
)
def test_every_way_to_write_a_server_comes_back(before: str, edited: str, after: str) -> None:
    assert CODEX.restored(edited, set(), {"x"}, before) == after


def test_an_array_of_tables_between_servers_stays_where_it_is() -> None:
    text = "[mcp_servers.x]\ncommand = 'y'\n[[hooks]]\na = 1\n# two\n[[hooks]]\na = 1\nb = 2\n"

    connected = CODEX.changed(text, (), {"pml": ENTRY})

    assert connected.startswith(text)
    assert CODEX.changed(connected, {"pml"}, {}) == text + "\n"
    assert CODEX.changed(connected, {"x"}, {}) == connected.removeprefix("[mcp_servers.x]\ncommand = 'y'\n")
