"""Servers in the shape of any client or command line are understood, or the error names the key."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pml_gateway.clients.importing import ImportPlan, plan_import
from pml_gateway.clients.paste import pasted
from pml_gateway.config.settings import Settings
from pml_gateway.errors import UsageError

from .machine import Machine

pytestmark = pytest.mark.field("C3")

URL = "https://h.test/mcp"
ENTRY = {"command": "npx", "args": ["-y", "server"]}


def plan(machine: Machine, text: str, name: str | None = None) -> ImportPlan:
    return plan_import([pasted(text, name)], Settings(), machine.surroundings)


def additions(machine: Machine, value: Any, name: str | None = None) -> dict[str, Any]:
    return plan(machine, value if isinstance(value, str) else json.dumps(value), name).additions


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"command": "x", "type": ""}, {"command": "x"}),
        ({"command": "x", "transport": " "}, {"command": "x"}),
        ({"url": URL, "type": "streamableHttp"}, {"url": URL}),
        ({"url": f"{URL}/sse", "type": "streamable_http"}, {"url": f"{URL}/sse", "transport": "http"}),
        ({"command": "npx", "args": "-y server 'a b'"}, {"command": "npx", "args": ["-y", "server", "a b"]}),
        ({"command": ["npx", "-y"], "args": "server"}, ENTRY),
        ({"command": "x", "args": ["--port", 8080, True]}, {"command": "x", "args": ["--port", "8080", "true"]}),
        ({"command": "x", "env": {"A": None, "B": "1"}}, {"command": "x", "env": {"B": "1"}}),
        (
            {"command": "x", "env": {"A": 1, "B": 1.5, "C": False}},
            {"command": "x", "env": {"A": "1", "B": "1.5", "C": "false"}},
        ),
        ({"command": "x", "env": ["A=b", "C=d=e"]}, {"command": "x", "env": {"A": "b", "C": "d=e"}}),
        ({"command": "x", "env": [{"name": "A", "value": "b"}]}, {"command": "x", "env": {"A": "b"}}),
        (
            {"command": "x", "env": [{"key": "A", "value": 2}, {"C": "d"}]},
            {"command": "x", "env": {"A": "2", "C": "d"}},
        ),
        ({"command": "x", "env": "A=b\nC=d"}, {"command": "x", "env": {"A": "b", "C": "d"}}),
        ({"command": "x", "env": ["A"]}, {"command": "x", "env": {"A": "${env:A}"}}),
        ({"command": "x", "env": None, "args": None, "cwd": None}, {"command": "x"}),
        ({"url": URL, "headers": ["X-A: b", "X-C: d:e"]}, {"url": URL, "headers": {"X-A": "b", "X-C": "d:e"}}),
        ({"url": URL, "headers": {"X-A": None, "X-B": 1}}, {"url": URL, "headers": {"X-B": "1"}}),
        ({"transport": {"type": "stdio", "command": "x", "args": ["y"]}}, {"command": "x", "args": ["y"]}),
        ({"transport": {"type": "sse", "url": URL}}, {"url": URL, "transport": "sse"}),
        ({"transport": {"type": "http", "url": URL, "headers": {"X": "1"}}}, {"url": URL, "headers": {"X": "1"}}),
        ({"serverUrl": URL}, {"url": URL}),
        ({"httpUrl": f"{URL}/sse"}, {"url": f"{URL}/sse", "transport": "http"}),
        ({"url": URL, "requestOptions": {"headers": {"X": "1"}}}, {"url": URL, "headers": {"X": "1"}}),
        (
            {"cmd": "uvx", "args": ["x"], "envs": {"A": "b"}, "type": "stdio"},
            {"command": "uvx", "args": ["x"], "env": {"A": "b"}},
        ),
        ({"type": "local", "command": ["npx", "-y", "server"], "enabled": True}, ENTRY),
        ({"type": "remote", "url": URL, "enabled": False}, {"url": URL, "enabled": False}),
        ({"type": "local", **ENTRY, "tools": ["*"]}, ENTRY),
        (
            {"type": "local", "command": ["x"], "environment": {"T": "{env:MY_T}"}},
            {"command": "x", "env": {"T": "${env:MY_T}"}},
        ),
        (
            {"url": URL, "headers": {"X": "{env:MY_X}/{file:~/k}"}},
            {"url": URL, "headers": {"X": "${env:MY_X}/${file:~/k}"}},
        ),
        ({"command": "x", "args": ["--url", "$MY_HOST/a"]}, {"command": "x", "args": ["--url", "${env:MY_HOST}/a"]}),
        ({"url": "https://%MY_HOST%/mcp"}, {"url": "https://${env:MY_HOST}/mcp"}),
        ({**ENTRY, "disabled": True}, {**ENTRY, "enabled": False}),
        ({**ENTRY, "isActive": False}, {**ENTRY, "enabled": False}),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_every_way_to_write_an_entry_means_one_thing(
    machine: Machine, entry: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert additions(machine, {"mcpServers": {"one": entry}}) == {"one": expected}
    settings = Settings.model_validate({"servers": {"one": {k: v for k, v in entry.items() if k != "tools"}}})
    assert settings.servers["one"].enabled is expected.get("enabled", True)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"mcpServers": [{"name": "one", **ENTRY}]}),
        json.dumps([{"name": "one", **ENTRY}]),
        json.dumps({"mcp": {"one": {"type": "local", "command": ["npx", "-y", "server"]}}}),
        json.dumps({"amp.mcpServers": {"one": ENTRY}}),
        json.dumps({"projects": {"/a": {"mcpServers": {"one": ENTRY}}}}),
        json.dumps(
            {"context_servers": {"one": {"source": "custom", "command": {"path": "npx", "args": ["-y", "server"]}}}}
        ),
        json.dumps({"$schema": "x", "servers": {"one": {"type": "stdio", **ENTRY}}, "inputs": []}),
        "extensions:\n  one:\n    type: stdio\n    cmd: npx\n    args: [-y, server]\n    envs: {}\n    timeout: null\n",
        "mcpServers:\n  - name: one\n    command: npx\n    args:\n      - -y\n      - server\n",
        "- name: one\n  command: npx\n  args: ['-y', server]\n",
        "```yaml\nname: mine\nmcpServers:\n  - name: one\n    command: npx\n    args: [-y, server]\n```",
        '// mine\n{"mcpServers": {"one": {"command": "npx", /* x */ "args": ["-y", "server",],},},}',
        "claude mcp add one -- npx -y server",
        "$ claude mcp add --transport stdio --scope user one -- npx -y server",
        "claude mcp add one \\\n  -s project \\\n  -- npx -y server",
        "Run this:\n```bash\nclaude mcp add one npx -- -y server\n```\nand restart.",
        'claude mcp add-json one \'{"type":"stdio","command":"npx","args":["-y","server"]}\' --scope user',
        "codex mcp add one -- npx -y server",
        "gemini mcp add --trust --timeout 5000 -s user one npx -- -y server",
        'code --add-mcp \'{"name":"one","command":"npx","args":["-y","server"]}\'',
    ],
)
def test_every_block_is_read(machine: Machine, text: str) -> None:
    found = additions(machine, text)

    assert list(found) == ["one"]
    assert {key: value for key, value in found["one"].items() if key != "call_timeout"} == ENTRY


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"claude mcp add --transport http one {URL}", {"url": URL}),
        (f"claude mcp add one {URL}/sse -t sse", {"url": f"{URL}/sse"}),
        (
            f'claude mcp add -t http one {URL} -H "X-A: b" -H "X-C: d"',
            {"url": URL, "headers": {"X-A": "b", "X-C": "d"}},
        ),
        (f'claude mcp add -t http one {URL} --header "X-A: $MY_A"', {"url": URL, "headers": {"X-A": "${env:MY_A}"}}),
        (
            f"claude mcp add -t http one {URL} --client-id me --callback-port 8080 --client-secret",
            {
                "url": URL,
                "auth": {
                    "client_id": "me",
                    "client_secret": "${env:MCP_CLIENT_SECRET}",
                    "redirect_uri": "http://localhost:8080/callback",
                },
            },
        ),
        ("claude mcp add -e A=1 -e B=2 one -- x", {"command": "x", "env": {"A": "1", "B": "2"}}),
        (
            "claude mcp add --env A=1 B=2 --scope user one -- x --env C=3",
            {"command": "x", "args": ["--env", "C=3"], "env": {"A": "1", "B": "2"}},
        ),
        ("claude mcp add --env=A='1 2' one -- x 'a b'", {"command": "x", "args": ["a b"], "env": {"A": "1 2"}}),
        (f"codex mcp add one --url {URL}", {"url": URL}),
        (
            f"codex mcp add one --url {URL} --bearer-token-env-var MY_T",
            {"url": URL, "headers": {"Authorization": "Bearer ${env:MY_T}"}},
        ),
        (
            "codex mcp add --env A=1 --env B=$MY_B one -- x -v",
            {"command": "x", "args": ["-v"], "env": {"A": "1", "B": "${env:MY_B}"}},
        ),
        ("gemini mcp add -e A=1 one x y", {"command": "x", "args": ["y"], "env": {"A": "1"}}),
    ],
)
def test_options_of_command_lines_are_read(machine: Machine, line: str, expected: dict[str, Any]) -> None:
    assert additions(machine, line) == {"one": expected}


def test_several_command_lines_add_several_servers(machine: Machine) -> None:
    found = additions(machine, f"claude mcp add a -- x\n# and\nclaude mcp add -t http b {URL}\n")

    assert found == {"a": {"command": "x"}, "b": {"url": URL}}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("claude mcp add one", "`claude mcp add` names no server"),
        ("claude mcp add one 'npx", "a quote is not closed in `claude mcp add`"),
        ("claude mcp add --what one -- x", "unknown option '--what' of `claude mcp add`"),
        ("claude mcp add one -- x --scope", ""),
        ("claude mcp add --scope", "--scope has no value in `claude mcp add`"),
        ("claude mcp add-json one '{\"command\": }'", "the JSON of `claude mcp add-json` is broken"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_refused_in_its_own_words(line: str, said: str) -> None:
    if not said:
        assert pasted(line).entries["one"]["args"] == ["--scope"]
        return
    with pytest.raises(UsageError) as refused:
        pasted(line)
    assert said in refused.value.message


JARGON = (
    "valid tuple",
    "valid string",
    "valid dictionary",
    "valid integer",
    "unable to",
    "instance",
    "Input",
    "tuple",
    "boolean",
    "dict_",
)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"command": "x", "args": {"a": 1}}, "args: a mapping should be a list"),
        ({"command": "x", "args": [["a"]]}, "args[0]: a list should be a text"),
        ({"command": "x", "args": "-y 'server"}, "args: a quote is not closed; write a list"),
        ({"command": "x", "env": {"A": {"b": 1}}}, "env.A: a mapping should be a text"),
        ({"command": "x", "env": {"A": ["b"]}}, "env.A: a list should be a text"),
        ({"command": "x", "env": "hello"}, 'env: write names with their values, as {"NAME": "value"}'),
        ({"command": "x", "env": ["a b"]}, 'env[0]: write a name with its value, as {"NAME": "value"}'),
        ({"command": "x", "env": 3}, "env: write names with their values"),
        ({"url": URL, "headers": ["nothing"]}, 'headers[0]: write a name with its value, as {"X-Name": "value"}'),
        ({"url": 3}, "url: 3 should be a text"),
        ({"command": {"path": 3}}, "command: 3 should be a text"),
        ({"command": "x", "type": 3}, "unknown transport 3; use one of stdio, http, sse"),
        ({"command": "x", "type": "websocket"}, "unknown transport 'websocket'; use one of stdio, http, sse"),
        ({"command": "x", "disabled": "perhaps"}, ""),
        ({"command": "x", "call_timeout": "soon"}, "call_timeout: this text should be a number"),
        ({"command": "x", "connect_timeout": 0}, "connect_timeout: 0 should be greater than 0"),
        ({"command": "x", "enabled": "maybe"}, "enabled: this text should be true or false"),
        ("npx -y server", "should be the settings of a server"),
    ],
)
def test_what_is_not_understood_names_its_key_in_plain_words(machine: Machine, entry: Any, said: str) -> None:
    machine.write("home/.cursor/mcp.json", {"mcpServers": {"bad": entry}})

    problems = machine.plan().servers[0].problems

    assert said in " ".join(problems)
    assert not [word for word in JARGON if word in " ".join(problems)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (URL, {"url": URL}),
        ("npx -y server", ENTRY),
        ("uvx server --flag 'a b'", {"command": "uvx", "args": ["server", "--flag", "a b"]}),
    ],
)
def test_a_bare_address_or_command_is_a_server_where_its_name_is_given(
    machine: Machine, text: str, expected: dict[str, Any]
) -> None:
    assert additions(machine, f"{text}\n", "one") == {"one": expected}
