"""The README is true: its commands parse or run, its configurations load, its generated parts are up to date."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from pml_gateway.config.load import load_settings
from tests.cli.test_every_command import command_of, parsed
from tests.support.command_line import demo_home, pml
from tests.support.readme import README, code_blocks, generated, with_generated

BLOCKS = code_blocks()
TEXT = README.read_text(encoding="utf-8")
INLINE = sorted({each for each in re.findall(r"`(pml [^`\n]+)`", TEXT) if not re.search(r"[\[\]|·…]", each)})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The demo's servers behind the gateway, and a client that starts one of them itself."""
    folder = tmp_path_factory.mktemp("readme")
    with demo_home(folder) as home:
        servers = json.loads((home / "config.yaml").read_text(encoding="utf-8"))["servers"]
        claude = {"mcpServers": {"calc": servers["calc"]}}
        (folder / ".claude.json").write_text(json.dumps(claude), encoding="utf-8")
        yield home


@pytest.mark.parametrize("name", generated())
def test_the_generated_blocks_are_up_to_date(name: str) -> None:
    assert f"<!-- {name}: begin -->\n{generated()[name]}\n" in TEXT, "run: python -m tests.support.readme"
    assert with_generated(TEXT) == TEXT


@pytest.mark.parametrize("line", [line for block in BLOCKS if block.language == "sh" for line in block.commands])
def test_every_command_in_a_block_is_one(line: str) -> None:
    parsed(line)


@pytest.mark.parametrize("line", INLINE)
def test_every_command_in_the_text_is_one(line: str) -> None:
    command, rest = command_of(line)
    assert command.name != "pml" or rest[0].startswith("--")
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in rest if word.startswith("-")} <= known


def test_the_marked_blocks_run(home: Path) -> None:
    lines = [line for block in BLOCKS if block.mark == "runs" for line in block.commands]
    assert lines
    for line in lines:
        if not line.startswith("pml serve"):
            command, _ = command_of(line)
            # A person says yes; here is nobody to ask.
            asks = any("--yes" in parameter.opts for parameter in command.params)
            pml(*shlex.split(line)[1:], *(["--yes"] if asks else []))


@pytest.mark.parametrize("text", [block.text for block in BLOCKS if block.language == "yaml"])
def test_every_configuration_loads(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text, encoding="utf-8")
    assert load_settings(config_file=file).files == (file,)


@pytest.mark.parametrize("text", [block.text for block in BLOCKS if block.language == "json"])
def test_every_json_block_parses(text: str) -> None:
    assert json.loads(text)


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\((?!https?:)([^)#]+)\)", TEXT))))
def test_every_link_into_the_repository_has_its_file(target: str) -> None:
    assert (README.parent / target).exists()


def test_every_folded_part_ends() -> None:
    assert TEXT.count("<details>") == TEXT.count("</details>") == TEXT.count("<summary>") > 0
