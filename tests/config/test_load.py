from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pml_gateway.config.load import LoadedSettings, Origin, load_settings
from pml_gateway.config.problems import MAX_LISTED_PROBLEMS
from pml_gateway.config.settings import Settings, StorageSettings
from pml_gateway.errors import ConfigurationError
from pml_gateway.types import ExposureMode

from .workspace import Workspace


def failure(workspace: Workspace, environ: dict[str, str] | None = None, **arguments: object) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        workspace.load(environ, **arguments)
    return caught.value


def problems(error: ConfigurationError) -> dict[str, str]:
    return {problem["key"]: problem["message"] for problem in error.details["problems"]}


def test_without_any_source_the_defaults_hold(workspace: Workspace) -> None:
    loaded = workspace.load()

    assert loaded.settings == Settings()
    assert loaded.files == ()
    assert set(loaded.origins.values()) == {Origin("default", "built in")}


def test_later_sources_win_and_every_value_knows_its_origin(workspace: Workspace) -> None:
    workspace.user(
        "gateway:\n"
        "  tools_exposure: full_proxy\n"
        "  intent: user\n"
        "  hybrid:\n"
        "    max_underlying_tools: 40\n"
        "    semantic_threshold: 0.65\n"
        "search:\n"
        "  limit: 7\n"
        "  min_score: 0.2\n"
    )
    workspace.in_project("gateway:\n  intent: project\n  tools_exposure: hybrid\n", is_trusted=True)
    environ = {"PML_SEARCH__LIMIT": "9", "PML_GATEWAY__TOOLS_EXPOSURE": "semantic"}

    loaded = workspace.load(environ, preset="hybrid_balanced", mode="meta_only", overrides={"http.port": 9000})

    settings = loaded.settings
    assert settings.gateway.tools_exposure is ExposureMode.META_ONLY
    assert settings.gateway.intent == "project"
    assert settings.gateway.hybrid.max_underlying_tools == 20
    assert settings.search.limit == 9
    assert settings.http.port == 9000
    assert loaded.origins["gateway.tools_exposure"] == Origin("command line", "--mode")
    assert loaded.origins["gateway.intent"] == Origin("project", f"{workspace.project_file}:2")
    assert loaded.origins["gateway.hybrid.max_underlying_tools"] == Origin("preset", "--preset hybrid_balanced")
    assert loaded.origins["search.limit"] == Origin("environment", "PML_SEARCH__LIMIT")
    assert loaded.origins["search.min_score"] == Origin("user", f"{workspace.config_file}:9")
    assert loaded.origins["http.port"] == Origin("command line", "--port")
    assert loaded.origins["http.host"].source == "default"
    assert loaded.files == (workspace.config_file, workspace.project_file, workspace.home / "trust.json")


def test_every_leaf_of_the_settings_has_an_origin(workspace: Workspace) -> None:
    workspace.user("servers:\n  fs: {command: [npx, -y, fs], timeout: 3000}\n")

    origins = workspace.load().origins

    here = Origin("user", f"{workspace.config_file}:2")
    assert {origins[f"servers.fs.{name}"] for name in ("command", "args", "call_timeout")} == {here}
    assert origins["servers.fs.max_queue"].source == "default"
    assert {key.split(".")[0] for key in origins} == set(Settings.model_fields)


def test_a_file_named_on_the_command_line_replaces_the_users(workspace: Workspace) -> None:
    workspace.user("gateway: {intent: user}\nsearch: {limit: 9}\n")
    other = workspace.root / "other.yaml"
    other.write_text("gateway: {intent: other}\n")

    assert workspace.load(config_file=other).settings.gateway.intent == "other"
    assert workspace.load(config_file=other).settings.search.limit == 5
    assert workspace.load({"PML_CONFIG": str(other)}).settings.gateway.intent == "other"


def test_a_named_file_has_to_exist(workspace: Workspace) -> None:
    missing = workspace.root / "missing.yaml"

    assert str(missing) in str(failure(workspace, config_file=missing))
    assert str(missing) in str(failure(workspace, {"PML_CONFIG": str(missing)}))


def test_a_server_has_one_way_to_be_reached(workspace: Workspace) -> None:
    workspace.user("servers:\n  none: {}\n  both: {command: a, url: https://a.test}\n")

    found = problems(failure(workspace))

    assert found["servers.none"] == "give `command` (stdio) or `url` (HTTP, SSE)"
    assert found["servers.both"] == "give either `command` (stdio) or `url` (HTTP, SSE), not both"


def test_an_unknown_key_is_an_error_that_names_the_nearest(workspace: Workspace) -> None:
    workspace.user(
        "gateway:\n"
        "  hybrid: {max_underlying_toolz: 3}\n"
        "  max_tokens: 4\n"
        "htp: {}\n"
        "mode: hybrid\n"
        "servers:\n"
        "  fs: {comand: npx}\n"
        "zzz: 1\n"
    )

    error = failure(workspace)

    found = problems(error)
    assert found["gateway.hybrid.max_underlying_toolz"] == "unknown key; did you mean max_underlying_tools?"
    assert found["gateway.max_tokens"] == "unknown key; did you mean gateway.hybrid.max_tokens?"
    assert found["htp"] == "unknown key; did you mean http?"
    assert found["servers.fs.comand"] == "unknown key; did you mean command?"
    assert found["mode"] == "unknown key; did you mean gateway.tools_exposure?"
    assert found["zzz"].startswith("unknown key; known here: gateway, naming")
    assert f"{workspace.config_file}:7: servers.fs.comand" in str(error)


def test_a_bad_value_is_named_with_its_line_and_limit(workspace: Workspace) -> None:
    workspace.user(
        "gateway:\n"
        "  style: namspaces\n"
        "  hybrid:\n"
        "    semantic_threshold: 1.5\n"
        "    max_underlying_tools: many\n"
        "  meta_tools: [serch]\n"
        "  blacklisted_tools: delete\n"
        "http: 8080\n"
        "references: {max_bytes: lots}\n"
    )

    error = failure(workspace)

    found = problems(error)
    assert found["gateway.style"] == "'namspaces' should be 'tools' or 'namespaces'; did you mean namespaces?"
    assert found["gateway.hybrid.semantic_threshold"] == "1.5 should be less than or equal to 1"
    assert found["gateway.hybrid.max_underlying_tools"] == "'many' should be a whole number"
    assert found["gateway.meta_tools"].startswith("no such meta-tool: serch; choose from search_tools")
    assert found["gateway.blacklisted_tools"] == "'delete' should be a list"
    assert found["http"] == "8080 should be a mapping of keys to values"
    assert found["references.max_bytes"] == "'lots' is no size; write for example 4MiB, 500KB or 1048576"
    lines = [problem["location"].rpartition(":")[2] for problem in error.details["problems"]]
    assert lines == sorted(lines)


def test_whether_and_for_how_long_clients_share_a_gateway_is_set_as_everything_else(workspace: Workspace) -> None:
    workspace.user("local: {attach: false}\n")
    loaded = workspace.load({"PML_LOCAL__IDLE_MINUTES": "0.5"})
    assert (loaded.settings.local.attach, loaded.settings.local.idle_minutes) == (False, 0.5)
    assert loaded.origins["local.idle_minutes"] == Origin("environment", "PML_LOCAL__IDLE_MINUTES")
    assert "local.idle_minutes" in problems(failure(workspace, {"PML_LOCAL__IDLE_MINUTES": "0"}))


def test_problems_of_files_and_environment_are_reported_together(workspace: Workspace) -> None:
    workspace.user("search: {limit: 0}\n")

    error = failure(workspace, {"PML_SEARCH__LIMITT": "3"})

    assert set(problems(error)) == {"search.limit", "PML_SEARCH__LIMITT"}
    assert "2 problems" in str(error)


@pytest.mark.parametrize(
    ("text", "location", "message"),
    [
        ("gateway:\n  intent: [a\n", ":3:1", "broken YAML"),
        ("a: b: c\n", ":1:5", "mapping values are not allowed here"),
        ("search: {limit: 3}\nsearch: {limit: 4}\n", ":2", "duplicate key; first set in line 1"),
        ("- a\n", ":1", "should hold keys and values"),
        ("a: 1\n---\nb: 1\n", ":2:1", "another document"),
        ("gateway: {intent: !!python/object:os.system x}\n", ":1", "means nothing here"),
        ("gateway: {intent: \x07}\n", "config.yaml", "broken YAML"),
        ("[" * 5000, "config.yaml", "nested too deeply"),
        ("workflows: " + "{a: " * 60 + "1" + "}" * 60, ":1", "nested more than 50 levels"),
        ("workflows: &a {again: *a}\n", ":1", "nested more than 50 levels"),
    ],
)
@pytest.mark.slow
def test_a_file_that_cannot_be_read_is_located(workspace: Workspace, text: str, location: str, message: str) -> None:
    workspace.user(text)

    error = failure(workspace)

    assert location in str(error)
    assert message in str(error)


def test_every_duplicate_key_is_reported(workspace: Workspace) -> None:
    workspace.user("search:\n  limit: 1\n  limit: 2\nhttp:\n  port: 1\n  port: 2\n")

    assert set(problems(failure(workspace))) == {"search.limit", "http.port"}


def test_aliases_cannot_expand_without_bound(workspace: Workspace) -> None:
    lines = ["a: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"b{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 8)]
    workspace.user("workflows:\n" + "".join(f"  {line}\n" for line in lines))

    assert "expands to more than 50000 values" in str(failure(workspace))


def test_text_that_is_not_utf8_is_refused(workspace: Workspace) -> None:
    workspace.config_file.write_bytes(b"gateway: {intent: \xff}\n")

    assert "not UTF-8" in str(failure(workspace))


def test_sections_whose_lines_are_all_commented_out_count_as_absent(workspace: Workspace) -> None:
    workspace.user("gateway:\n  hybrid:\n  blacklisted_tools:\n#   - x\nservers:\nhttp:\n")

    assert workspace.load().settings == Settings()


def test_yaml_1_2_words_are_text_and_numbers_in_variables_keep_their_digits(workspace: Workspace) -> None:
    workspace.user(
        "gateway: {intent: no}\n"
        "servers:\n"
        "  fs:\n"
        "    command: npx\n"
        "    args: [-p, 1.10, 2024-01-01, 0x1F, on]\n"
        "    env: {VERSION: 1.10, DEBUG: true, COUNT: 007}\n"
    )

    loaded = workspace.load().settings

    assert loaded.gateway.intent == "no"
    assert loaded.servers["fs"].args == ("-p", "1.10", "2024-01-01", "0x1F", "on")
    assert loaded.servers["fs"].env == {"VERSION": "1.10", "DEBUG": "true", "COUNT": "007"}


def test_merge_keys_fill_in_what_an_entry_leaves_out(workspace: Workspace) -> None:
    workspace.user(
        "servers:\n  one: &base {command: npx, call_timeout: 5}\n  two:\n    <<: *base\n    call_timeout: 7\n"
    )

    servers = workspace.load().settings.servers

    assert (servers["two"].command, servers["two"].call_timeout) == ("npx", 7)


def test_the_key_other_clients_use_for_servers_is_accepted(workspace: Workspace) -> None:
    workspace.user('{"mcpServers": {"fs": {"command": "npx", "args": ["-y", "fs"], "disabled": false}}}')

    loaded = workspace.load()

    assert loaded.settings.servers["fs"].args == ("-y", "fs")
    assert loaded.origins["servers.fs.command"] == Origin("user", f"{workspace.config_file}:1")


def test_a_server_under_both_spellings_is_an_error(workspace: Workspace) -> None:
    workspace.user("servers: {fs: {command: a}}\nmcpServers: {fs: {command: b}, git: {command: c}}\n")

    assert problems(failure(workspace)) == {"servers.fs": "is given under both `servers` and `mcpServers`"}


@pytest.mark.parametrize("url", ["redis://:${env:PW}@host/1", "${env:PML_REDIS}", "unix:///run/redis.sock"])
def test_a_shared_storage_is_one_line(workspace: Workspace, url: str) -> None:
    workspace.user(f"storage: {url}\n")
    loaded = workspace.load({"PML_STORAGE__RESULTS": "disk"})

    assert loaded.settings.storage == StorageSettings(url=url, key="${env:PML_STORAGE_KEY}", results="disk")
    assert loaded.origins["storage.url"].location.endswith("config.yaml:1")


def test_the_older_spelling_of_the_blacklist_is_merged(workspace: Workspace) -> None:
    workspace.user("gateway:\n  blacklisted_tools: [a, b]\n  hybrid:\n    blacklisted_tools: [b, c]\n")

    loaded = workspace.load()

    assert loaded.settings.gateway.blacklisted_tools == ("a", "b", "c")
    assert loaded.origins["gateway.blacklisted_tools"].location.endswith(":2, " + f"{workspace.config_file}:4")


def test_an_unknown_mode_in_a_file_falls_back_to_the_one_that_shows_least(workspace: Workspace) -> None:
    workspace.user("gateway:\n  tools_exposure: hybird\n")

    loaded = workspace.load()

    assert loaded.settings.gateway.tools_exposure is ExposureMode.META_ONLY
    (warning,) = map(str, loaded.warnings)
    assert f"{workspace.config_file}:2" in warning
    assert "'hybird', using meta_only" in warning
    assert "did you mean hybrid?" in warning


@pytest.mark.parametrize("place", ["user", "trusted project", "project", "environment", "overruled"])
def test_an_unknown_mode_is_a_problem_wherever_it_stands(workspace: Workspace, place: str) -> None:
    written, environ = "gateway: {tools_exposure: hybird}\n", {}
    match place:
        case "user":
            workspace.user(written)
        case "environment":
            environ = {"PML_GATEWAY__TOOLS_EXPOSURE": "hybird"}
        case "overruled":
            workspace.user(written)
            environ = {"PML_GATEWAY__TOOLS_EXPOSURE": "meta_only"}
        case _:
            workspace.in_project(written, is_trusted=place == "trusted project")

    loaded = workspace.load(environ)

    assert loaded.settings.gateway.tools_exposure is ExposureMode.META_ONLY
    (problem,) = loaded.problems
    assert problem.key == "gateway.tools_exposure"
    assert "choose from" in problem.message
    assert problem.message.endswith("did you mean hybrid?")
    assert [str(problem)] == [warning for warning in map(str, loaded.warnings) if "tools_exposure" in warning]


def test_an_unknown_mode_is_said_beside_other_errors(workspace: Workspace) -> None:
    workspace.user("gateway: {tools_exposure: hybird}\nhttp: {port: many}\n")

    text = str(failure(workspace))

    assert "http.port" in text
    assert "unknown mode 'hybird'" in text


def test_an_unknown_mode_or_preset_on_the_command_line_is_an_error(workspace: Workspace) -> None:
    assert "did you mean full_proxy?" in str(failure(workspace, mode="full-proxy"))
    assert "did you mean hybrid_balanced?" in str(failure(workspace, preset="balanced"))
    assert "did you mean port" in str(failure(workspace, overrides={"http.prt": 1}))


def test_settings_of_the_style_that_is_not_chosen_say_that_they_do_nothing(workspace: Workspace) -> None:
    workspace.user("gateway: {legacy_tools: true, namespaces: {split_by_access: true}}\n")

    first, second = map(str, workspace.load().warnings)

    assert "gateway.legacy_tools" in first
    assert "gateway.namespaces" in second


def test_namespaces_say_which_modes_they_change(workspace: Workspace) -> None:
    workspace.user("gateway: {style: namespaces, tools_exposure: full_proxy}\n")

    (warning,) = map(str, workspace.load().warnings)

    assert "changes meta_only and hybrid, not full_proxy" in warning


@pytest.mark.parametrize("name", ["with space", "call_tool", "", "x" * 49])
def test_a_group_needs_a_name_that_a_tool_could_have(workspace: Workspace, name: str) -> None:
    workspace.user(f'gateway: {{namespaces: {{groups: {{"{name}": ["a:*"]}}}}}}\n')

    assert "cannot name a namespace" in str(failure(workspace))


def test_a_client_key_is_never_a_literal_and_the_error_does_not_repeat_it(workspace: Workspace) -> None:
    workspace.user("clients:\n  ci: {key: hunter2-is-secret}\n  ok: {key: '${env:CI_KEY}'}\n")

    error = failure(workspace)

    assert set(problems(error)) == {"clients.ci.key"}
    assert "hunter2" not in repr(error.details) + str(error)
    assert error.__cause__ is None
    assert error.__context__ is None


def test_values_that_may_be_secrets_never_enter_a_message(workspace: Workspace) -> None:
    workspace.user(
        "servers:\n"
        "  a: {url: 'ftp://user:hunter2@host/'}\n"
        "  b: {command: npx, env: [hunter2]}\n"
        "  c: {command: npx, sessions: hunter2}\n"
        "  d: hunter2\n"
        "clients:\n"
        "  e: {key: '${env:X}', mode: hunter2}\n"
    )

    error = failure(workspace, {"PML_CLIENTS__F__KEY": "hunter2", "PML_CLIENTS__E__ALLOW": "[hunter2"})

    assert len(problems(error)) == 7
    assert "hunter2" not in str(error) + repr(error.details)


def test_references_stay_references(workspace: Workspace) -> None:
    workspace.user("servers:\n  gh: {command: npx, env: {TOKEN: '${env:GH}'}}\n")

    loaded = workspace.load({"GH": "hunter2"})

    assert loaded.settings.servers["gh"].env == {"TOKEN": "${env:GH}"}
    assert "hunter2" not in repr(loaded)


def test_a_later_file_that_describes_a_server_anew_replaces_it_and_one_that_does_not_refines_it(
    workspace: Workspace,
) -> None:
    workspace.user("servers:\n  a: {command: npx, env: {A: '1'}}\n  b: {command: npx, env: {B: '1'}}\n")
    workspace.in_project("servers:\n  a: {url: 'https://x.test/mcp'}\n  b: {enabled: false}\n", is_trusted=True)

    servers = workspace.load().settings.servers

    assert (servers["a"].url, servers["a"].command, servers["a"].env) == ("https://x.test/mcp", None, {})
    assert (servers["b"].enabled, servers["b"].env) == (False, {"B": "1"})


def test_a_client_configuration_with_null_members_is_read(workspace: Workspace) -> None:
    workspace.user('{"servers": {"a": {"command": "npx", "args": null, "env": null, "url": null}}}')

    assert workspace.load().settings.servers["a"].args == ()


@pytest.mark.parametrize("entry", ["{command: []}", "{command: npx, args: 3}", "{command: npx, disabled: maybe}"])
def test_a_malformed_server_entry_is_a_problem_not_a_crash(workspace: Workspace, entry: str) -> None:
    workspace.user(f"servers:\n  a: {entry}\n")

    assert all(key.startswith("servers.a") for key in problems(failure(workspace)))


def test_a_rejected_file_leaves_what_was_loaded_before_untouched(workspace: Workspace) -> None:
    workspace.user("gateway: {intent: before}\n")
    serving: LoadedSettings = workspace.load()

    workspace.user("gateway: {intent: [\n")
    with pytest.raises(ConfigurationError):
        serving = workspace.load()

    assert serving.settings.gateway.intent == "before"


def test_a_flood_of_problems_is_cut_in_the_message_and_complete_in_the_details(workspace: Workspace) -> None:
    workspace.user("".join(f"unknown_{number}: 1\n" for number in range(100)))

    error = failure(workspace)

    assert len(str(error).splitlines()) == MAX_LISTED_PROBLEMS + 2
    assert "and 70 more" in str(error)
    assert len(error.details["problems"]) == 100


def test_a_working_directory_that_is_gone_has_no_project(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace.project)
    workspace.project.rmdir()

    assert load_settings(environ=workspace.environ).settings == Settings()


def test_importing_the_loader_brings_neither_terminal_nor_protocol_libraries() -> None:
    heavy = ("rich", "typer", "fastmcp", "mcp")
    code = f"import sys, pml_gateway.config.load; print([name for name in {heavy} if name in sys.modules])"
    root = Path(__file__).parents[2]

    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root, env=dict(os.environ)
    )

    assert output.stdout.strip() == "[]"
