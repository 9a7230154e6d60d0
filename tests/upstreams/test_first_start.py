"""The first start of a package runner: it has time, is never ended half-way, and happens once for each package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from pml_gateway.config.settings import Settings
from pml_gateway.errors import UpstreamUnavailableError, UpstreamUnusableError
from pml_gateway.gateway.gateway import Gateway, open_gateway
from pml_gateway.processes import package_faults
from pml_gateway.reports.status import gateway_status
from pml_gateway.upstreams.connector import UpstreamState
from tests.support.fake_npx import broken_cache, entry, journal, let_finish, let_take_back, runner_in, update
from tests.support.memory import paths_in
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LOOPS = [("asyncio", {"use_uvloop": True}), ("asyncio", {"use_uvloop": False})]
"""How children are left to themselves differs between them; commands use the first."""

LEAVES_A_CHILD = pytest.mark.filterwarnings(
    "ignore:Exception ignored in.*__uv_walk:pytest.PytestUnraisableExceptionWarning"
)
"""uvloop warns at its end of a child that it was never told to kill, unless it has seen it end by then."""


def settings_of(servers: dict[str, Any], **upstreams: Any) -> Settings:
    return Settings.model_validate({"servers": servers, "upstreams": upstreams})


def gateway_with(home: Path, settings: Settings) -> Any:
    return open_gateway(settings, paths_in(home), identity="test")


async def settled(gateway: Gateway, name: str = "up") -> Any:
    upstream = gateway.pool.upstreams[name]
    with anyio.fail_after(60):
        await upstream.connector.settled.wait()
    return upstream


async def test_an_installation_outlives_the_connect_timeout_and_calls_are_told_of_it(tmp_path: Path) -> None:
    settings = settings_of({"up": entry(runner_in(tmp_path))}, connect_timeout=5)
    async with gateway_with(tmp_path / "home", settings) as gateway:
        upstream = gateway.pool.upstreams["up"]
        await until(lambda: upstream.connector.state is UpstreamState.INSTALLING)
        with pytest.raises(UpstreamUnavailableError, match="installing, npx @scope/server") as caught:
            await upstream.request("tools/call", {"name": "t"})
        assert caught.value.details["executed"] == "no"
        assert caught.value.details["retry_after_seconds"] > 0
        assert "installing" in upstream.unlisted_because
        assert "installing" in str(upstream.not_listed())
        [row] = gateway_status(gateway)["upstreams"]
        assert row["state"] == "installing"
        assert "installing" in row["error"]
        await until(lambda: "begun" in journal(tmp_path))
        let_finish(tmp_path)
        await settled(gateway)
        answer = await upstream.request("tools/call", {"name": "t", "arguments": {}})
        assert answer["content"][0]["text"] == "here"
    await until(lambda: "left" in journal(tmp_path))
    assert journal(tmp_path) == ["begun", "done", "served", "left"]


async def test_a_gateway_that_ends_leaves_the_installation_to_its_end_and_no_server_behind(tmp_path: Path) -> None:
    settings = settings_of({"up": entry(runner_in(tmp_path))})
    async with gateway_with(tmp_path / "home", settings):
        await until(lambda: "begun" in journal(tmp_path))
    assert journal(tmp_path) == ["begun"]
    let_finish(tmp_path)
    await until(lambda: "left" in journal(tmp_path))
    assert journal(tmp_path) == ["begun", "done", "served", "left"]
    async with gateway_with(tmp_path / "home", settings) as gateway:
        assert (await settled(gateway)).connector.last_error is None


async def test_a_gateway_started_meanwhile_waits_for_an_installation_left_behind(tmp_path: Path) -> None:
    settings = settings_of({"up": entry(runner_in(tmp_path))})
    async with gateway_with(tmp_path / "home", settings):
        await until(lambda: "begun" in journal(tmp_path))
    async with gateway_with(tmp_path / "home", settings) as gateway:
        upstream = gateway.pool.upstreams["up"]
        await until(lambda: upstream.connector.state is UpstreamState.INSTALLING)
        let_finish(tmp_path)
        assert (await settled(gateway)).connector.last_error is None
    assert journal(tmp_path).count("begun") == 1
    assert "killed" not in journal(tmp_path)


async def test_servers_of_one_package_and_gateways_of_one_home_install_it_once(tmp_path: Path) -> None:
    variables = runner_in(tmp_path)
    settings = settings_of({"a": entry(variables, "--port", "1"), "b": entry(variables, "--port", "2")})
    async with gateway_with(tmp_path / "home", settings) as one, gateway_with(tmp_path / "home", settings) as other:
        upstreams = [gateway.pool.upstreams[name] for gateway in (one, other) for name in ("a", "b")]
        await until(lambda: all(upstream.connector.state is UpstreamState.INSTALLING for upstream in upstreams))
        await until(lambda: "begun" in journal(tmp_path))
        let_finish(tmp_path)
        for upstream in upstreams:
            with anyio.fail_after(60):
                await upstream.connector.settled.wait()
            assert upstream.connector.last_error is None
    assert journal(tmp_path).count("begun") == 1
    assert "killed" not in journal(tmp_path)


async def test_what_is_installed_already_starts_like_any_other(tmp_path: Path) -> None:
    let_finish(tmp_path)
    settings = settings_of({"up": entry(runner_in(tmp_path))})
    async with gateway_with(tmp_path / "one", settings) as gateway:
        await settled(gateway)
    async with gateway_with(tmp_path / "another", settings) as gateway:
        await settled(gateway)
    assert journal(tmp_path).count("served") == 2


async def test_another_runner_is_remembered_as_installed_once_it_answered(tmp_path: Path) -> None:
    let_finish(tmp_path)
    server = {**entry(runner_in(tmp_path, "uvx")), "command": "uvx", "args": ["server"]}
    for _ in range(2):
        async with gateway_with(tmp_path / "home", settings_of({"up": server})) as gateway:
            assert (await settled(gateway)).connector.last_error is None
    assert journal(tmp_path).count("served") == 2


async def test_an_installation_at_its_limit_is_ended_with_time_to_take_it_back(tmp_path: Path) -> None:
    settings = settings_of({"up": entry(runner_in(tmp_path))}, first_start_timeout=3, connect_timeout=3)
    async with gateway_with(tmp_path / "home", settings) as gateway:
        upstream = await settled(gateway)
        assert "3 s of its first start" in upstream.connector.last_error.message
        assert "upstreams.first_start_timeout" in upstream.connector.last_error.hint
        await until(lambda: "killed" in journal(tmp_path))


async def test_a_server_that_ends_at_once_though_installed_says_so_as_ever(tmp_path: Path) -> None:
    let_finish(tmp_path)
    settings = settings_of({"up": entry(runner_in(tmp_path), "--no-key")})
    async with gateway_with(tmp_path / "home", settings) as gateway:
        upstream = await settled(gateway)
        assert "closed the connection while starting" in upstream.connector.last_error.message
        log = (paths_in(tmp_path / "home").logs_dir / "up.log").read_text(encoding="utf-8")
        assert "API_KEY is missing" in log


async def test_a_broken_cache_is_recognised_and_tried_again_once_it_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pml_gateway.upstreams.connector.SURROUNDINGS_SECONDS", 0.05)
    variables = runner_in(tmp_path)
    folder = broken_cache(tmp_path)
    let_finish(tmp_path)
    async with gateway_with(tmp_path / "home", settings_of({"up": entry(variables)})) as gateway:
        upstream = await settled(gateway)
        error = upstream.connector.last_error
        assert isinstance(error, UpstreamUnusableError)
        assert str(folder) in error.message
        assert "pml doctor --fix" in error.hint
        upstream.connector.mark_pending()
        package_faults.remove(folder)
        assert (await settled(gateway)).connector.last_error is None


async def test_a_home_that_cannot_be_written_keeps_no_server_from_starting(tmp_path: Path) -> None:
    let_finish(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    (home / "installs").write_text("in the way", encoding="utf-8")
    async with gateway_with(home, settings_of({"up": entry(runner_in(tmp_path))})) as gateway:
        assert (await settled(gateway)).connector.last_error is None


async def installed(folder: Path) -> Settings:
    """The settings of a server whose package is installed, and whose next start fetches a new version."""
    let_finish(folder)
    settings = settings_of({"up": entry(runner_in(folder), connect_timeout=3)})
    async with gateway_with(folder / "home", settings) as gateway:
        await settled(gateway)
    await until(lambda: "left" in journal(folder))
    update(folder)
    return settings


@LEAVES_A_CHILD
@pytest.mark.parametrize("anyio_backend", LOOPS)
async def test_a_stop_lets_a_start_that_fetches_a_new_version_take_it_back(tmp_path: Path) -> None:
    settings = await installed(tmp_path)
    async with gateway_with(tmp_path / "home", settings):
        await until(lambda: "updating" in journal(tmp_path))
    await until(lambda: "terminated" in journal(tmp_path))
    let_take_back(tmp_path)
    await until(lambda: "taken-back" in journal(tmp_path))


@LEAVES_A_CHILD
@pytest.mark.parametrize("anyio_backend", LOOPS)
async def test_a_connect_timeout_lets_it_take_that_back_before_it_is_tried_again(tmp_path: Path) -> None:
    settings = await installed(tmp_path)
    async with gateway_with(tmp_path / "home", settings) as gateway:
        upstream = gateway.pool.upstreams["up"]
        await until(lambda: "terminated" in journal(tmp_path))
        await until(lambda: upstream.connector.state is UpstreamState.INSTALLING)
        let_take_back(tmp_path)
        await until(lambda: "taken-back" in journal(tmp_path))
        assert journal(tmp_path).count("updating") == 1


async def test_a_runner_that_is_not_there_is_the_fault_of_its_command_and_installs_nothing(tmp_path: Path) -> None:
    missing = {"command": "uvx", "args": ["server"], "env": {"PATH": str(tmp_path)}}
    async with gateway_with(tmp_path / "home", settings_of({"up": missing})) as gateway:
        error = (await settled(gateway)).connector.last_error
    assert isinstance(error, UpstreamUnusableError)
    assert "uvx" in error.message
    assert "first start" not in error.message


UNKNOWN = {
    "npm": b"npm error code E404\nnpm error 404 Not Found - GET https://registry.npmjs.org/nosuch - Not found\n",
    "npm version": b"npm error code ETARGET\nnpm error notarget No matching version found for nosuch@9.9.9.\n",
    "uv": b"  x No solution found when resolving tool dependencies:\n  Because nosuch was not found in the package "
    b"registry and you require nosuch, we can conclude that your requirements are unsatisfiable.\n",
    "uv version": b"Because there is no version of nosuch==9.9 and you require nosuch==9.9\n",
    "pipx": b"ERROR: Could not find a version that satisfies\nERROR: No matching distribution found for nosuch\n",
    "pnpm": b" ERR_PNPM_FETCH_404  GET https://registry.npmjs.org/nosuch: Not Found - 404\n",
    "bun": b"error: GET https://registry.npmjs.org/nosuch - 404\n",
    "deno": b"error: npm package 'nosuch' does not exist.\n",
}


@pytest.mark.field("D3")
@pytest.mark.parametrize("said", UNKNOWN.values(), ids=UNKNOWN)
async def test_a_package_that_does_not_exist_is_told_so_at_the_first_start_and_at_the_next(
    tmp_path: Path, said: bytes
) -> None:
    (tmp_path / "said").write_bytes(said)
    runner, goes_on = tmp_path / "npx", tmp_path / "go"
    runner.write_text(
        f"#!/bin/sh\nwhile [ ! -e '{goes_on}' ]; do sleep 0.02; done\ncat '{tmp_path}/said' >&2\nexit 1\n"
    )
    runner.chmod(0o755)
    settings = settings_of({"up": {"command": str(runner), "args": ["-y", "nosuch"]}})
    goes_on.touch()
    async with gateway_with(tmp_path / "home", settings) as gateway:
        error = (await settled(gateway)).connector.last_error
        assert isinstance(error, UpstreamUnusableError)
        assert "npx nosuch does not exist" in error.message
        assert "servers.up.args" in error.hint
    goes_on.unlink()
    async with gateway_with(tmp_path / "home", settings) as gateway:
        upstream = gateway.pool.upstreams["up"]
        await until(lambda: upstream.connector.installing is not None)
        assert "did not exist when it was last tried" in upstream.unlisted_because
        goes_on.touch()
        await settled(gateway)


@pytest.mark.field("D3")
async def test_another_failure_of_a_runner_is_no_missing_package(tmp_path: Path) -> None:
    runner = tmp_path / "npx"
    runner.write_text("#!/bin/sh\necho 'Error: API_KEY is not set' >&2\nexit 1\n")
    runner.chmod(0o755)
    settings = settings_of({"up": {"command": str(runner), "args": ["-y", "server"]}})
    async with gateway_with(tmp_path / "home", settings) as gateway:
        error = (await settled(gateway)).connector.last_error
        assert error is not None
        assert "does not exist" not in error.message
