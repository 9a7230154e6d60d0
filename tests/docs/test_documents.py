"""README and the pages of `pml docs` are true: commands parse or run, configurations load, links and tables hold."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from pml_gateway.config.load import load_settings
from pml_gateway.docs import page_of, pages
from tests.cli.test_every_command import command_of, parsed
from tests.support.command_line import demo_home, pml
from tests.support.documents import DOCUMENTS, PAGES, README, REPOSITORY, code_blocks, generated, with_generated

BLOCKS = [block for file in DOCUMENTS for block in code_blocks(file)]
TEXTS = {str(file.relative_to(REPOSITORY)): file.read_text(encoding="utf-8") for file in DOCUMENTS}
INLINE = sorted(
    {
        each
        for text in TEXTS.values()
        for each in re.findall(r"`(pml [^`\n]+)`", text)
        if not re.search(r"[\[\]|·…]", each)
    }
)
LINK = re.compile(r"\[[^\]]+\]\((?!https?:)([^)#]+)[^)]*\)")
MAX_README_BYTES = 14_000
"""About what a newcomer reads to its end."""

MAX_CODE = 78
"""Characters of a line of code that a terminal of 80 columns shows whole, so that it can be copied."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The demo's servers behind the gateway, and a client that starts one of them itself."""
    folder = tmp_path_factory.mktemp("documents")
    with demo_home(folder) as home:
        servers = json.loads((home / "config.yaml").read_text(encoding="utf-8"))["servers"]
        claude = {"mcpServers": {"calc": servers["calc"]}}
        (folder / ".claude.json").write_text(json.dumps(claude), encoding="utf-8")
        yield home


def test_the_readme_is_short() -> None:
    assert len(README.read_bytes()) <= MAX_README_BYTES


@pytest.mark.parametrize("name", generated())
def test_every_generated_block_stands_in_one_document_and_is_up_to_date(name: str) -> None:
    places = [text for text in TEXTS.values() if f"<!-- {name}: begin -->" in text]
    assert len(places) == 1
    assert with_generated(places[0]) == places[0], "run: python -m tests.support.documents"


@pytest.mark.parametrize("line", [line for block in BLOCKS if block.language == "sh" for line in block.commands])
def test_every_command_in_a_block_is_one(line: str) -> None:
    parsed(line)


@pytest.mark.parametrize("line", INLINE)
def test_every_command_in_the_text_is_one(line: str) -> None:
    command, rest = command_of(line)
    assert command.name != "pml" or rest[0].startswith("--")
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    # What stands behind two dashes is another program's.
    own = rest[: rest.index("--")] if "--" in rest else rest
    assert {word for word in own if word.startswith("-")} <= known


@pytest.mark.slow
def test_the_marked_blocks_run(home: Path) -> None:
    lines = [line for block in BLOCKS if block.mark == "runs" for line in block.commands]
    assert lines
    for line in dict.fromkeys(lines):
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


@pytest.mark.parametrize("document", TEXTS)
def test_every_link_into_the_repository_has_its_file(document: str) -> None:
    folder = (REPOSITORY / document).parent
    assert [target for target in LINK.findall(TEXTS[document]) if not (folder / target).exists()] == []


def test_code_on_a_page_can_be_copied_from_a_terminal() -> None:
    blocks = [block for file in PAGES for block in code_blocks(file)]
    assert [line for block in blocks for line in block.text.splitlines() if len(line) > MAX_CODE] == []


@pytest.mark.parametrize("document", TEXTS)
def test_every_topic_that_is_mentioned_has_a_page(document: str) -> None:
    for topic in re.findall(r"pml docs ([a-z][a-z-]*)", TEXTS[document]):
        assert page_of(topic).text


def test_the_readme_leads_to_every_page() -> None:
    linked = {(REPOSITORY / target).resolve() for target in LINK.findall(README.read_text(encoding="utf-8"))}
    assert set(PAGES) <= linked


def test_the_package_finds_every_page_with_its_title_and_a_summary_of_one_sentence() -> None:
    found = pages()
    assert {page.topic for page in found} == {file.stem for file in PAGES}
    for page in found:
        assert page.text.startswith(f"# {page.title}\n\n")
        assert re.fullmatch(r"[^`#|][^|]*[^.]\.", page.summary), page.topic
        assert ". " not in page.summary, page.topic
