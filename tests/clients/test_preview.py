"""What a preview masks is what is moved to the secrets; what is written is what was shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pml_gateway.clients.block import Block
from pml_gateway.clients.discover import known_client
from pml_gateway.clients.model import FileFormat, Scope
from pml_gateway.clients.show import masked_diff
from pml_gateway.clients.translate import is_placeholder, translated
from pml_gateway.clients.variables import EntryOrigin
from pml_gateway.config.edits.edit import masked_yaml, set_values
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.secrets.judgement import MASK, masked
from pml_gateway.secrets.references import references, resolve

from ..secrets.credentials import rows
from ..support.examples import examples
from .machine import Machine

DESKTOP = "home/.config/Claude/claude_desktop_config.json"
ROWS = [row for row in rows() if "${" not in row.value]
VALUES = [row.value for row in ROWS]
names = st.sampled_from(sorted({row.name for row in ROWS if row.place == "env"})) | st.from_regex(
    r"[A-Z]{1,8}(_(TOKEN|KEY|PASS|ID|PATH|URL|MODE|AUTH)){0,2}", fullmatch=True
)
texts = st.sampled_from(VALUES) | st.text(
    st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_categories=["Cc"]), max_size=30
)
arguments = st.lists(
    texts | st.sampled_from([row.name for row in ROWS if row.place == "arg" and row.name] + ["-y", "--api-key"]),
    max_size=5,
)
entries = st.one_of(
    st.fixed_dictionaries(
        {"command": st.sampled_from(["npx", "/usr/bin/server"])},
        optional={"args": arguments, "env": st.dictionaries(names, texts, max_size=4)},
    ),
    st.fixed_dictionaries(
        {"url": st.sampled_from([row.value for row in ROWS if row.place == "url"])},
        optional={
            "headers": st.dictionaries(
                st.sampled_from([row.name for row in ROWS if row.place == "header"]), texts, max_size=3
            )
        },
    ),
)
blocks = st.dictionaries(st.sampled_from(["a", "b", "github", "db"]), entries, min_size=1, max_size=3)


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Machine]:
    """Machines of which no example sees what another left."""
    return lambda: Machine(tmp_path_factory.mktemp("machine"))


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(block=blocks)
def test_what_a_preview_masks_is_moved_and_what_stays_is_shown(
    fresh: Callable[[], Machine], block: dict[str, Any]
) -> None:
    machine = fresh()
    machine.write(DESKTOP, {"mcpServers": block})
    plan = machine.plan()
    origin = EntryOrigin(known_client("claude-desktop"), Scope.USER, machine.surroundings)
    environ = machine.environ | plan.values
    for server in plan.servers:
        if server.outcome != "added":
            continue
        before, after = translated(block[server.entry_name], origin).definition, server.definition
        assert before is not None
        assert after is not None
        UpstreamDefinition.model_validate(after)
        assert masked(after) == after
        for was, shown, moved in zip(leaves(before), leaves(masked(before)), leaves(after), strict=True):
            if was.strip() and not is_placeholder(was) and resolvable(moved, environ):
                assert (shown == was) is (moved == was)
                assert resolve(moved, environ) == resolve(was, environ)
    text = set_values("", {"servers": plan.additions})
    # The preview of the configuration hides nothing: what was secret is a reference by now.
    assert masked_yaml(text) == text


def resolvable(text: str, environ: Mapping[str, str]) -> bool:
    """Whether no part of a value was a placeholder, which somebody has to fill in."""
    return all(reference.name in environ for reference in references(text))


def leaves(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for item in value.values():
                yield from leaves(item)
        case list():
            for item in value:
                yield from leaves(item)


@settings(max_examples=examples(30))
@given(block=blocks)
def test_the_preview_of_a_client_s_file_is_the_file_but_for_its_secrets(block: dict[str, Any]) -> None:
    known = Block(FileFormat.JSON, ("mcpServers",))
    before = json.dumps({"mcpServers": block}, indent=2, ensure_ascii=False)
    diff = masked_diff("mcp.json", before, "{}", known)
    removed = [line[1:] for line in diff.splitlines() if line.startswith("-") and not line.startswith("---")]
    expected = json.dumps({"mcpServers": masked(block)}, indent=2, ensure_ascii=False).splitlines()
    # An item of a list that is secret in one place is masked in every list.
    items = {item for entry in block.values() for item in entry.get("args", ())}
    for line, wanted in zip(removed, expected, strict=True):
        assert line == wanted or (
            MASK in line and any(json.dumps(item, ensure_ascii=False) in wanted for item in items)
        )


def test_a_password_is_masked_and_the_user_of_the_same_name_is_shown() -> None:
    block = {"db": {"command": "x", "env": {"DB_USER": "postgres", "DB_PASS": "postgres"}}}
    before = json.dumps({"mcpServers": block}, indent=2)
    diff = masked_diff("mcp.json", before, "{}", Block(FileFormat.JSON, ("mcpServers",)))
    assert '"DB_USER": "postgres"' in diff
    assert '"DB_PASS": "***"' in diff


def test_secrets_of_everyday_servers_are_moved_and_settings_are_shown(machine: Machine) -> None:
    secret = {"IMAP_PASS": "hunter2", "DB_PASS": "tiger", "SMTP_PASS": "hunter3", "PIN": "4711"}
    plain = {
        "MEMORY_FILE_PATH": "/home/me/memory.json",
        "ALLOW_ONLY_NON_DESTRUCTIVE_TOOLS": "true",
        "SLACK_TEAM_ID": "T01234567",
    }
    machine.write(DESKTOP, {"mcpServers": {"mail": {"command": "mail", "env": secret | plain}}})
    plan = machine.plan()
    generic = ("DB_PASS", "PIN")
    assert plan.values == {f"MAIL_{name}" if name in generic else name: value for name, value in secret.items()}
    assert all(plan.additions["mail"]["env"][name] == value for name, value in plain.items())
