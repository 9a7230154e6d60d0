from __future__ import annotations

from pathlib import Path

import pytest

from pml_gateway.errors import ConfigurationError
from pml_gateway.types import ExposureMode

from .workspace import Workspace


def test_variables_reach_every_depth_of_the_tree(workspace: Workspace) -> None:
    settings = workspace.load(
        {
            "PML_GATEWAY__TOOLS_EXPOSURE": "hybrid",
            "PML_GATEWAY__INTENT": "null",
            "PML_GATEWAY__HYBRID__MAX_UNDERLYING_TOOLS": "20",
            "PML_GATEWAY__HYBRID__MAX_TOKENS": "null",
            "PML_REFERENCES__MAX_BYTES": "4MiB",
            "PML_ACTIVITY__RECORD": "false",
        }
    ).settings

    assert settings.gateway.tools_exposure is ExposureMode.HYBRID
    assert settings.gateway.intent is None
    assert settings.gateway.hybrid.max_underlying_tools == 20
    assert settings.gateway.hybrid.max_tokens is None
    assert settings.references.max_bytes == 4 * 1024**2
    assert settings.activity.record is False


@pytest.mark.parametrize("text", ['["a", "b"]', "a,b", " a , b ,"])
def test_lists_are_json_or_comma_separated(workspace: Workspace, text: str) -> None:
    assert workspace.load({"PML_GATEWAY__BLACKLISTED_TOOLS": text}).settings.gateway.blacklisted_tools == ("a", "b")


def test_an_empty_variable_is_an_empty_list(workspace: Workspace) -> None:
    workspace.user("http: {allowed_hosts: [a]}\n")

    assert workspace.load({"PML_HTTP__ALLOWED_HOSTS": ""}).settings.http.allowed_hosts == ()


def test_a_section_can_be_given_as_json_and_refined(workspace: Workspace) -> None:
    loaded = workspace.load({"PML_SEARCH": '{"limit": 8, "min_score": 0.1}', "PML_SEARCH__MIN_SCORE": "0.4"})

    assert (loaded.settings.search.limit, loaded.settings.search.min_score) == (8, 0.4)
    assert loaded.origins["search.limit"].location == "PML_SEARCH"
    assert loaded.origins["search.min_score"].location == "PML_SEARCH__MIN_SCORE"


def test_a_shared_storage_is_one_variable(workspace: Workspace) -> None:
    workspace.user("storage: redis://host")
    loaded = workspace.load({"PML_STORAGE": "${env:CACHE}", "PML_STORAGE__RESULTS": "disk"})

    assert (loaded.settings.storage.url, loaded.settings.storage.results) == ("${env:CACHE}", "disk")
    assert loaded.origins["storage.url"].location == "PML_STORAGE"


def test_names_that_a_variable_cannot_spell_are_found(workspace: Workspace) -> None:
    workspace.user("servers:\n  my-Files: {command: npx}\n")

    servers = workspace.load(
        {"PML_SERVERS__MY_FILES__CALL_TIMEOUT": "9", "PML_SERVERS__MY_FILES__ENV__LogLevel": "1"}
    ).settings.servers

    assert list(servers) == ["my-Files"]
    assert servers["my-Files"].call_timeout == 9
    assert servers["my-Files"].env == {"LogLevel": "1"}


def test_the_older_spelling_of_the_blacklist_is_accepted(workspace: Workspace) -> None:
    settings = workspace.load({"PML_GATEWAY__HYBRID__BLACKLISTED_TOOLS": "a"}).settings

    assert settings.gateway.blacklisted_tools == ("a",)


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("PML_GATEWAY__TOOL_EXPOSURE", "PML_GATEWAY__TOOLS_EXPOSURE"),
        ("PML_GATEWAY_TOOLS_EXPOSURE", "PML_GATEWAY__TOOLS_EXPOSURE"),
        ("PML_GATEWAY__MAX_TOKENS", "PML_GATEWAY__HYBRID__MAX_TOKENS"),
        ("PML_GATWAY__INTENT", "PML_GATEWAY__INTENT"),
    ],
)
def test_an_unknown_variable_is_an_error_that_names_the_nearest(
    workspace: Workspace, variable: str, nearest: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"{variable}: unknown variable; did you mean {nearest}\?"):
        workspace.load({variable: "x"})


def test_two_variables_for_one_key_are_an_error(workspace: Workspace) -> None:
    environ = {"PML_GATEWAY__BLACKLISTED_TOOLS": "a", "PML_GATEWAY__HYBRID__BLACKLISTED_TOOLS": "b"}

    with pytest.raises(ConfigurationError, match="sets the same key as PML_GATEWAY__BLACKLISTED_TOOLS"):
        workspace.load(environ)


def test_a_value_that_is_no_json_is_an_error(workspace: Workspace) -> None:
    with pytest.raises(ConfigurationError, match="PML_SEARCH: is no JSON object"):
        workspace.load({"PML_SEARCH": "{limit"})


def test_a_bad_value_names_the_variable(workspace: Workspace) -> None:
    with pytest.raises(ConfigurationError, match=r"PML_SEARCH__LIMIT: search\.limit: '70' should be less than"):
        workspace.load({"PML_SEARCH__LIMIT": "70"})


def test_places_are_no_settings_and_strangers_are_mentioned(workspace: Workspace) -> None:
    referred_to = {"PML_REDIS": "redis://host", "PML_STORAGE_KEY": "x"}
    loaded = workspace.load(
        {**referred_to, "PML_DATA": "/x", "PML_EDITOR": "vi", "PMLX": "1", "pml_gateway__intent": "no"}
    )

    assert [*map(str, loaded.warnings)] == ["environment variable PML_EDITOR is no setting and was ignored"]
    assert loaded.settings.gateway.intent is None


def test_a_dotenv_file_in_the_working_directory_is_not_read(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = "PML_GATEWAY__TOOLS_EXPOSURE=full_proxy\nPML_SERVERS__EVIL__COMMAND=rm\nPML_HOME=/tmp/evil\n"
    for folder in (workspace.project, workspace.home):
        Path(folder, ".env").write_text(hostile)
    monkeypatch.chdir(workspace.project)

    loaded = workspace.load()

    assert loaded.settings.gateway.tools_exposure is ExposureMode.META_ONLY
    assert loaded.settings.servers == {}
