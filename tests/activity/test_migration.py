"""A step and the step back leave the file byte for byte as it was, and never touch what is not theirs."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.activity.migration import Journal
from pml_gateway.activity.stages import Stage, stage_in, values_of, with_values
from pml_gateway.config.document import parse
from pml_gateway.config.settings import Settings
from pml_gateway.errors import ConfigurationError, GatewayError
from tests.config.edits.test_edit import EXPOSURE_LINE, configurations
from tests.support.examples import examples
from tests.support.full_disk import contents, room_for

TEXT = """\
# mine
gateway:
  tools_exposure: full_proxy   # for now
  blacklisted_tools: ["*:delete_*"]
  hybrid: {whitelisted_tools: [a__b]}
servers:
  a: {command: x}  # the one
"""


def journal(folder: Path) -> Journal:
    return Journal(folder / "migrations", "test")


def move(folder: Path, file: Path, stage: Stage) -> None:
    values = values_of(stage, Settings())
    journal(folder).move(file, values, client=None, before_stage="any", stage=stage.value)


@given(text=configurations(), stages=st.lists(st.sampled_from(list(Stage)), min_size=1, max_size=5))
@settings(max_examples=examples(40))
def test_steps_and_the_same_number_of_steps_back_are_nothing(text: str, stages: list[Stage]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "config.yaml"
        file.write_bytes(text.encode())
        for stage in stages:
            move(folder, file, stage)
            foreign = [line for line in text.splitlines() if line.strip() and not EXPOSURE_LINE.match(line)]
            now = file.read_bytes().decode().splitlines()
            assert all(line in now for line in foreign)
        while journal(folder).steps():
            assert journal(folder).undo(None).exact
        assert file.read_bytes() == text.encode()


def test_a_step_back_after_another_edit_undoes_its_own_keys_alone(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(TEXT)
    move(tmp_path, file, Stage.META_ONLY)
    file.write_text(file.read_text().replace("{command: x}", "{command: y}") + "# a note\n")
    undone = journal(tmp_path).undo(None)
    assert not undone.exact
    assert file.read_text() == TEXT.replace("{command: x}", "{command: y}") + "# a note\n"


def test_a_step_back_where_the_same_line_was_edited_restores_the_values(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(TEXT)
    move(tmp_path, file, Stage.HYBRID_BALANCED)
    file.write_text(file.read_text().replace("tools_exposure: hybrid", "tools_exposure: semantic"))
    assert not journal(tmp_path).undo(None).exact
    found = parse(file.read_text(), "user", file).values
    assert found["gateway"]["tools_exposure"] == "full_proxy"
    assert found["gateway"]["hybrid"]["whitelisted_tools"] == ["a__b"]
    assert found["servers"] == {"a": {"command": "x"}}
    assert "# the one" in file.read_text()


def test_without_a_step_there_is_no_way_back(tmp_path: Path) -> None:
    with pytest.raises(GatewayError, match="no step to go back from"):
        journal(tmp_path).undo(None)


def test_the_journal_is_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(TEXT)
    move(tmp_path, file, Stage.META_ONLY)
    [kept] = (tmp_path / "migrations").glob("*.json")
    assert kept.stat().st_mode & 0o077 == 0


def test_each_stage_is_known_again_and_follows_the_one_before() -> None:
    given_settings = Settings()
    for stage in Stage:
        assert stage_in(with_values(given_settings, values_of(stage, given_settings))) is stage
    assert [stage.next for stage in Stage] == [*list(Stage)[1:], None]


def test_a_client_moves_alone_unless_others_would_get_its_values() -> None:
    key = {"key": "${env:BOT_KEY}"}
    alone = Settings.model_validate({"clients": {"bot": key}})
    moved = with_values(alone, values_of(Stage.HYBRID_BALANCED, alone, "bot"))
    assert stage_in(moved, "bot") is Stage.HYBRID_BALANCED
    assert stage_in(moved) is Stage.META_ONLY
    shared = Settings.model_validate({"clients": {"bot": key}, "gateway": {"tools_exposure": "hybrid"}})
    with pytest.raises(ConfigurationError, match="the gateway would get its hybrid values"):
        values_of(Stage.HYBRID_BALANCED, shared, "bot")
    assert stage_in(with_values(shared, values_of(Stage.META_ONLY, shared, "bot")), "bot") is Stage.META_ONLY


def test_on_a_full_disk_a_stage_is_written_down_and_changed_or_neither(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"gateway: {{tools_exposure: full_proxy}}\n#{'x' * 2000}\n")
    journal = Journal(tmp_path / "migrations", str(file))
    values = {"gateway": {"tools_exposure": "semantic"}}
    for work in (
        lambda: journal.move(file, values, client=None, before_stage="full_proxy", stage="semantic"),
        lambda: journal.undo(None),
    ):
        before, size = contents(tmp_path), 0
        while True:
            with room_for(size):
                try:
                    work()
                    break
                except ConfigurationError as error:
                    assert "cannot be written: File too large" in str(error)
            assert contents(tmp_path) == before
            size += 500
        assert contents(tmp_path) != before
    assert "full_proxy" in file.read_text()
    assert journal.steps() == []
