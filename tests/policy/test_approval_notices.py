"""Desktop notifications of calls that wait, by a program on the PATH of the test."""

from __future__ import annotations

import shlex
import stat
from pathlib import Path

import pytest

from pml_gateway.gateway.approval_notices import notification_command
from tests.support.approving import KEYS, asking
from tests.support.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("keys", "gateways")]


def notifier(folder: Path, monkeypatch: pytest.MonkeyPatch, more: str = "") -> Path:
    """Put a `notify-send` on the PATH, which writes its arguments; the file that it writes them to."""
    shown, program = folder / "shown.txt", folder / "bin" / "notify-send"
    program.parent.mkdir(exist_ok=True)
    program.write_text(
        f'#!/bin/sh\n{{ printf "%s|" "$@"; echo; env; }} >> {shlex.quote(str(shown))}\n{more}\n', encoding="utf-8"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return shown


def text_of(shown: Path) -> str:
    """What was shown so far."""
    return shown.read_text(encoding="utf-8") if shown.exists() else ""


async def test_a_call_that_waits_is_shown_once_and_without_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = notifier(tmp_path, monkeypatch)
    monkeypatch.setenv("ADA_TOKEN", "secret-of-ada")
    async with asking(tmp_path, approvals={"notify": True}) as asked:
        for _ in range(2):
            assert await asked.call("up__wipe", {"repo": "secret-value"}) == "PENDING_APPROVAL"

        async def is_shown() -> bool:
            return "pml approvals show" in text_of(shown)

        await eventually(is_shown)
        [id_] = await asked.waiting()
    text = text_of(shown)
    title = "--app-name=pml|--|A call waits for your approval|"
    assert text.startswith(f"{title}ada: up__wipe\npml approvals show {id_}|")
    assert text.count("--app-name=pml") == 1
    assert "secret" not in text and KEYS["ADA"] not in text


async def test_a_notifier_that_hangs_or_fails_holds_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = notifier(tmp_path, monkeypatch, "exec sleep 60")
    async with asking(tmp_path, approvals={"notify": True}) as asked:
        assert await asked.call("up__wipe", {"repo": "mine"}) == "PENDING_APPROVAL"

        async def is_shown() -> bool:
            return bool(text_of(shown))

        await eventually(is_shown)
        await asked.answer()
        assert await asked.call("up__wipe", {"repo": "mine"}) == "OK"


async def test_only_what_asks_while_the_setting_is_on_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = notifier(tmp_path, monkeypatch)
    async with asking(tmp_path) as asked:
        await asked.call("up__wipe")
        settings = asked.served.gateway.state.settings
        on = settings.approvals.model_copy(update={"notify": True})
        await asked.served.reload(settings.model_copy(update={"approvals": on}))
        await asked.call("up__drop")

        async def is_shown() -> bool:
            return "pml approvals" in text_of(shown)

        await eventually(is_shown)
    assert "ada: up__drop" in text_of(shown) and "up__wipe" not in text_of(shown)


def test_a_program_in_a_relative_folder_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notifier(tmp_path, monkeypatch)
    assert (notification_command("title", "a < b") or [])[-1] == "a &lt; b"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "bin::.")
    assert notification_command("title", "text") is None
