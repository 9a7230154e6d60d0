"""`pml upstreams login` and `logout` as processes: browser, pasted address, JSON, and two processes that renew."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from tests.support.authorization import LIMIT, AuthorizationServer, Protected, protected
from tests.support.process import GatewayProcess, environment, run_pml, running_gateway, write_settings
from tests.support.raw import decoded, post_modern

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

BROWSER = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1]).read()"
NO_KEYRING = {"PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring"}


async def in_thread(work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    return await anyio.to_thread.run_sync(partial(work, *arguments, **options))


def settings(stand: Protected) -> dict[str, Any]:
    return {"servers": {"remote": {"url": stand.url}}, "gateway": {"tools_exposure": "full_proxy"}}


async def pml(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = home / "browser.py"
    await in_thread(script.write_text, BROWSER)
    browser = {"BROWSER": f"{sys.executable} {script} %s"}
    done: subprocess.CompletedProcess[str] = await in_thread(run_pml, home, *arguments, extra={**NO_KEYRING, **browser})
    return done


@asynccontextmanager
async def gateway_process(home: Path, stand: Protected) -> AsyncIterator[GatewayProcess]:
    manager = running_gateway(home, settings(stand), extra=NO_KEYRING)
    running = await in_thread(manager.__enter__)
    try:
        yield running
    finally:
        await in_thread(manager.__exit__, None, None, None)


def call(url: str) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Status, headers and message of one `tools/call`."""
    response = post_modern(url, "tools/call", {"name": "remote__whoami", "arguments": {}})
    return response.status_code, {key.lower(): value for key, value in response.headers.items()}, decoded(response)


@pytest.mark.slow
async def test_a_login_in_the_browser_reaches_a_running_gateway_and_a_logout_too(tmp_path: Path) -> None:
    async with protected() as stand:
        write_settings(tmp_path, settings(stand))

        async with gateway_process(tmp_path, stand) as running:
            status, headers, message = await in_thread(call, running.url)
            assert (status, "www-authenticate" in headers) == (200, False)
            error = message["result"]["structuredContent"]["error"]
            assert (error["code"], error["hint"]) == ("UPSTREAM_AUTH", "pml upstreams login remote")

            done = await pml(tmp_path, "upstreams", "login", "remote", "--json")
            report = json.loads(done.stdout)
            assert (done.returncode, report["state"], report["gateways"]) == (0, "logged_in", 1)
            await pml(tmp_path, "refresh")
            _, _, message = await in_thread(call, running.url)
            assert message["result"]["content"][0]["text"] == "did whoami"
            shown = await pml(tmp_path, "upstreams")
            assert "logged in" in shown.stdout

            gone = await pml(tmp_path, "upstreams", "logout", "remote")
            assert "logged out of remote, and its tokens were revoked" in gone.stdout
            status, headers, message = await in_thread(call, running.url)
            error = message["result"]["structuredContent"]["error"]
            assert (status, "www-authenticate" in headers, message["result"]["isError"]) == (200, False, True)
            assert (error["code"], error["hint"]) == ("UPSTREAM_AUTH", "pml upstreams login remote")
            listed = await pml(tmp_path, "upstreams", "--json")
            row = json.loads(listed.stdout)["gateways"][0]["upstreams"][0]
            assert (row["auth"], row["tools"]) == ({"state": "login_needed"}, 2)
            log = "".join(running.log)
        outputs = [done.stdout, done.stderr, shown.stdout, gone.stdout, gone.stderr, listed.stdout, log]
        outputs.append((await pml(tmp_path, "config", "show")).stdout)
        assert [secret for secret in stand.server.issued for text in outputs if secret in text] == []


async def test_without_a_browser_the_address_is_printed_and_the_answer_pasted(tmp_path: Path) -> None:
    async with protected() as stand:
        write_settings(tmp_path, settings(stand))
        process = await anyio.open_process(
            [sys.executable, "-m", "pml_gateway", "upstreams", "login", "remote", "--no-browser"],
            env=environment(tmp_path, NO_KEYRING),
            cwd=tmp_path,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        text = ""
        with anyio.fail_after(LIMIT):
            while "paste the address" not in text:
                text += (await process.stderr.receive()).decode()
            url = next(line for line in text.splitlines() if line.startswith(stand.issuer))
            await process.stdin.send(b"\nnot an address\n")
            while "this is not the address" not in text:
                text += (await process.stderr.receive()).decode()
            await process.stdin.send(f"{await stand.redirected(url)}\n".encode())
            assert b"logged in to remote" in await process.stdout.receive()
            assert await process.wait() == 0
        await process.aclose()


async def test_denied_consent_and_unknown_servers_end_with_an_error(tmp_path: Path) -> None:
    async with protected(AuthorizationServer(denies=True)) as stand:
        write_settings(tmp_path, settings(stand))
        denied = await pml(tmp_path, "upstreams", "login", "remote")
        assert (denied.returncode, "consent was denied" in denied.stderr) == (1, True)
        unknown = await pml(tmp_path, "upstreams", "login", "remotte")
        assert (unknown.returncode, "did you mean remote?" in unknown.stderr) == (2, True)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")
@pytest.mark.parametrize("answer", [b"y\n", b"n\n"])
async def test_a_person_at_a_terminal_is_asked_where_a_login_may_go(tmp_path: Path, answer: bytes) -> None:
    async with protected(mcp_host="127.0.0.2") as stand:
        write_settings(tmp_path, settings(stand))
        terminal, its_side = pty.openpty()
        process = await anyio.open_process(
            [sys.executable, "-m", "pml_gateway", "upstreams", "login", "remote", "--no-browser", "--timeout", "20"],
            env=environment(tmp_path, NO_KEYRING),
            cwd=tmp_path,
            stdin=its_side,
        )
        os.close(its_side)
        assert process.stderr is not None
        text = ""
        with anyio.fail_after(LIMIT):
            while "Log in there?" not in text:
                text += (await process.stderr.receive()).decode()
            assert stand.issuer in text
            os.write(terminal, answer)
            if answer == b"y\n":
                while "paste the address" not in text:
                    text += (await process.stderr.receive()).decode()
                url = next(line for line in text.splitlines() if line.startswith(stand.issuer))
                os.write(terminal, f"{await stand.redirected(url)}\n".encode())
            assert await process.wait() == (0 if answer == b"y\n" else 1)
        await process.aclose()
        os.close(terminal)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")
async def test_a_login_that_goes_elsewhere_takes_the_owners_word(tmp_path: Path) -> None:
    async with protected(mcp_host="127.0.0.2") as stand:
        write_settings(tmp_path, settings(stand))
        login = ("upstreams", "login", "remote")
        refused = await pml(tmp_path, *login)
        remedy = f"pml upstreams login remote --allow {stand.issuer}"
        assert (refused.returncode, remedy in " ".join(refused.stderr.split())) == (1, True)
        no_origin = await pml(tmp_path, *login, "--allow", "login.test")
        assert (no_origin.returncode, "no origin" in no_origin.stderr) == (2, True)
        allowed = await pml(tmp_path, *login, "--allow", stand.issuer)
        assert (allowed.returncode, "logged in to remote" in allowed.stdout) == (0, True)


@pytest.mark.slow
async def test_two_processes_that_renew_at_once_send_one_refresh_request(tmp_path: Path) -> None:
    async with protected(AuthorizationServer(lifetimes=[0])) as stand:
        write_settings(tmp_path, settings(stand))
        await pml(tmp_path, "upstreams", "login", "remote")
        stand.server.hold, stand.server.asked = anyio.Event(), anyio.Event()
        done: list[subprocess.CompletedProcess[str]] = []

        async def one() -> None:
            done.append(await pml(tmp_path, "call", "remote__whoami"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one)
            with anyio.fail_after(LIMIT):
                await stand.server.asked.wait()
            # The first process waits for its tokens, and the second says that it waits for the first.
            async with gateway_process(tmp_path, stand) as running:
                with anyio.fail_after(LIMIT):
                    while not any("another process renews the login" in line for line in list(running.log)):
                        await anyio.lowlevel.checkpoint()
                stand.server.hold.set()
                assert (await pml(tmp_path, "refresh")).returncode == 0
                _, _, message = await in_thread(call, running.url)
                assert message["result"]["content"][0]["text"] == "did whoami"
        assert done[0].stdout.strip() == "did whoami"
        assert stand.server.refreshes == 1
