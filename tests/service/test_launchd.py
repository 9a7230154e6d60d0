"""The agent: whatever stands in paths, a reader of property lists reads what was meant; and `launchctl` is asked."""

from __future__ import annotations

import plistlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.service.install import is_removable, manager_here, plan, remove, standing
from pml_gateway.service.launchd import LaunchdAgent, agent_program, agent_text
from pml_gateway.service.program import Program, can_be_written
from pml_gateway.service.state import NoManagerError
from tests.support.examples import examples
from tests.support.service_managers import asked, managers_in

WORDS = st.one_of(
    st.sampled_from(["a b", "<&>", "]]>", "--", 'say "x"', "100%h", "$HOME", "\\", "日本"]), st.text(max_size=30)
).filter(can_be_written)
LOG = Path("/logs/gateway.log")


@settings(max_examples=examples(40))
@given(st.lists(WORDS, min_size=1, max_size=4), WORDS, st.integers(0, 5))
def test_the_list_is_read_back_as_it_was_meant(words: list[str], home: str, folders: int) -> None:
    program = Program(("/opt/pml", *words), {"PML_HOME": home})
    text = agent_text(program, LOG, folders)
    values = plistlib.loads(text.encode())
    assert values["ProgramArguments"] == ["/opt/pml", *words]
    assert values["EnvironmentVariables"] == {"PML_HOME": home}
    assert values["KeepAlive"] == {"SuccessfulExit": False}
    assert agent_program(text) == program


@pytest.mark.parametrize("text", ["", "<plist>", "no list", "<plist><dict/></plist>", "<plist><array/></plist>"])
def test_what_is_no_agent_starts_nothing_that_is_known(text: str) -> None:
    assert agent_program(text) is None


@pytest.fixture
def managers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "managers"
    monkeypatch.setenv("PATH", managers_in(folder))
    return folder


def test_an_agent_is_loaded_once_started_anew_where_it_changed_and_taken_away(tmp_path: Path, managers: Path) -> None:
    manager = manager_here({"HOME": str(tmp_path / "home")}, "darwin")
    assert isinstance(manager, LaunchdAgent)
    program = Program(("/bin/echo", "up"), {})
    assert not standing(manager, program).is_installed

    plan(manager, program).write()
    assert not plan(manager, program).has_changed
    manager.start(is_changed=True)
    found = standing(manager, program)
    assert found.state is not None
    assert (found.state.is_enabled, found.state.pid, found.problem) == (True, 4711, "")
    assert standing(manager, Program(("/bin/echo", "down"), {})).remedy == "pml service install"

    manager.start(is_changed=False)
    assert "bootout" not in " ".join(asked(managers))
    manager.start(is_changed=True)
    assert "bootout" in " ".join(asked(managers))

    assert is_removable(manager)
    manager.stop()
    remove(manager)
    assert not (tmp_path / "home").exists()


def test_without_a_desktop_session_it_is_said_what_is_missing(tmp_path: Path, managers: Path) -> None:
    manager = LaunchdAgent.of({"HOME": str(tmp_path)}, LOG)
    (managers / "no-session").touch()
    for ask in (manager.state, manager.stop):
        with pytest.raises(NoManagerError, match="no session with a desktop"):
            ask()
