"""What people paste becomes servers, however the page or the client wrote it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.clients.paste import pasted
from pml_gateway.errors import UsageError
from tests.support.examples import examples

ENTRY = {"command": "npx", "args": ["-y", "server"]}
ONE = '"one": {"command": "npx", "args": ["-y", "server"]}'


@pytest.mark.parametrize(
    ("text", "client"),
    [
        (f'{{"mcpServers": {{{ONE}}}}}', "mcp-json"),
        (f'{{"servers": {{{ONE}}}, "inputs": []}}', "vscode"),
        (f'{{"mcp": {{"servers": {{{ONE}}}}}}}', "vscode"),
        (f'{{"context_servers": {{{ONE}}}}}', "zed"),
        (f"{{{ONE}}}", "mcp-json"),
        (ONE, "mcp-json"),
        (f"  {ONE},\n", "mcp-json"),
        (f'"mcpServers": {{{ONE}}}', "mcp-json"),
        (f"```json\n{{{ONE}}}\n```\n", "mcp-json"),
        (f"Add this to the file:\n\n```jsonc\n{ONE}, // here\n```\nThen restart.", "mcp-json"),
        (f'Put it there: {{"mcpServers": {{{ONE},}}, /* more */ }} and restart', "mcp-json"),
        (f'{{"mcpServers": {{{ONE}}}}}'.replace('"', "\u201d"), "mcp-json"),
        ('[mcp_servers.one]\ncommand = "npx"\nargs = ["-y", "server"]\n', "codex"),
        ('```toml\n[mcp_servers.one]\ncommand = "npx"\nargs = ["-y", "server"]\n```', "codex"),
        ('{"name": "one", "command": "npx", "args": ["-y", "server"]}', "mcp-json"),
        (f"\ufeff{{\r\n{ONE}\r\n}}", "mcp-json"),
    ],
)
def test_every_shape_of_a_block_is_read(text: str, client: str) -> None:
    file = pasted(text)

    assert file.entries == {"one": ENTRY}
    assert file.client.name == client


def test_a_single_server_takes_the_name_that_is_given() -> None:
    assert pasted(json.dumps(ENTRY), "two").entries == {"two": ENTRY}
    assert pasted(f"{{{ONE}}}", "two").entries == {"two": ENTRY}


def test_the_words_of_a_client_say_whose_they_are() -> None:
    assert pasted('{"mcpServers": {"a": {"httpUrl": "https://a.test"}}}').client.name == "gemini-cli"
    assert pasted('{"mcpServers": {"a": {"serverUrl": "https://a.test"}}}').client.name == "windsurf"
    assert pasted('{"mcpServers": {"a": {"url": "https://a.test/${env:K}"}}}').client.name == "cursor"
    asked = pasted('{"inputs": [{"id": "key", "description": "The key"}], "servers": {"a": {"url": "${input:key}"}}}')
    assert asked.inputs == {"key": "The key"}


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("", None, "no server"),
        ("npx -y server", None, "no server"),
        ('{"mcpServers": {}}', None, "no server"),
        ('{"mcpServers": {"a": {"command": "x"', None, "no server"),
        ("[1, 2]", None, "no server"),
        (json.dumps(ENTRY), None, "has no name"),
        ('{"a": {"command": "a"}, "b": {"command": "b"}}', "c", "2 servers: a, b"),
        ("x" * 1_000_001, None, "longer than"),
    ],
)
def test_what_is_no_server_is_refused(text: str, name: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        pasted(text, name)


@given(st.text(max_size=40), st.text(max_size=40))
@settings(max_examples=examples(100))
def test_whatever_is_pasted_is_read_or_refused(before: str, after: str) -> None:
    for text in (before, f"{before}{{{ONE}}}{after}", f"{before}[mcp_servers.one]\n{after}"):
        try:
            entries: Any = pasted(text).entries
        except UsageError as error:
            assert len(str(error)) < 400
        else:
            assert entries


@pytest.mark.parametrize("text", ["{}", "[1]", '{"mcpServers": {}}', '{"mcpServers": {"e": {}}}'])
def test_what_can_be_read_and_has_no_server_is_not_called_broken(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        pasted(text)

    assert refused.value.message == "no server is in what was pasted"
