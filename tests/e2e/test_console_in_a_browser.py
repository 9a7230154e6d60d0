"""The console in a real browser: every page, wide and narrow, light and dark, with and without JavaScript."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.activity.test_feed import recorded, use
from tests.support.process import run_pml, write_settings

from .test_apps_in_a_browser import browser
from .test_console import ATTACHING, SETTINGS, console

playwright = pytest.importorskip("playwright.sync_api", reason="drives a browser")

pytestmark = [pytest.mark.e2e, pytest.mark.heavy, pytest.mark.timeout(300)]

WAIT_MS = 60_000
PAGES = (
    "",
    "servers",
    "server?name=calc",
    "lists",
    "tools",
    "tools?q=days",
    "activity",
    "tool?name=calc__date_difference",
    "waiting",
    "add",
    "settings_of_tool?server=calc&tool=calc__date_difference",
    "settings",
    "settings?all=yes&key=gateway.intent",
    "doctor",
    "lists?try.gateway.hybrid.semantic_threshold=0.5",
)


@pytest.mark.parametrize(
    ("scheme", "width", "scripts"), [("light", 1280, True), ("dark", 360, True), ("light", 360, False)]
)
def test_every_page_fits_says_no_error_and_asks_no_other_host(
    tmp_path: Path, scheme: str, width: int, scripts: bool
) -> None:
    calc = SETTINGS["servers"]["calc"]
    long = {"command": calc["command"], "args": [*calc["args"], "/a/long/path" * 8]}
    file = write_settings(tmp_path, {"servers": {"calc": long}})
    midnight = datetime.now().replace(hour=0, minute=0, second=0, microsecond=0)
    hours = [(midnight - timedelta(hours=hour)).timestamp() for hour in range(1, 25)]
    recorded(tmp_path, *(use(at, f"calc__{'long' * 20}", config=str(file), program="word" * 20) for at in hours))
    errors: list[str] = []
    hosts: set[str] = set()
    with console(tmp_path) as (_, link), playwright.sync_playwright() as engines:
        program = browser()
        # The browser's own sandbox needs rights that containers do not give.
        chromium = engines.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            opened = chromium.new_context(
                color_scheme=scheme, viewport={"width": width, "height": 800}, java_script_enabled=scripts
            )
            page = opened.new_page()
            page.set_default_timeout(WAIT_MS)
            page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
            page.goto(link)
            root = page.url
            for path in (*PAGES, f"activity?until={midnight:%Y-%m-%dT%H:%M}"):
                page.goto(root + path)
                assert page.locator("h1").count() == 1, path
                assert page.locator("h1").inner_text() != "That did not work", (path, page.content())
                assert page.locator("nav a[aria-current]").count() <= 1
                if scripts:
                    assert page.evaluate("document.documentElement.scrollWidth") <= width, path
            page.go_back()
            page.reload()
            assert page.locator("h1").count() == 1
            page.goto(f"{root}servers")
            page.keyboard.press("Tab")
            assert page.locator(":focus").inner_text() == "Skip to the content"
            if scripts:
                assert run_pml(tmp_path, "disable", "calc", "--yes").returncode == 0
                page.get_by_text("disabled").wait_for()
        finally:
            chromium.close()
    assert errors == []
    assert hosts == {link.split("/")[2]}


@pytest.mark.parametrize("scripts", [True, False])
def test_decisions_and_changes_are_made_by_the_keyboard_alone(tmp_path: Path, scripts: bool) -> None:
    rules = [{"match": {"tool": "calc:*"}, "do": "ask"}]
    file = write_settings(tmp_path, {**SETTINGS, "rules": rules, "approvals": {"hold_seconds": 0, "notify": False}})
    before = file.read_text()
    with console(tmp_path) as (_, link), playwright.sync_playwright() as engines:
        for end in ("2026-01-02", "2026-01-03"):
            words = ("call", "calc__date_difference", "--start", "2026-01-01", "--end", end)
            assert "PENDING_APPROVAL" in run_pml(tmp_path, *words, "--json", extra=ATTACHING).stdout
        chromium = engines.chromium.launch(executable_path=browser(), args=["--no-sandbox"])
        try:
            page = chromium.new_context(java_script_enabled=scripts).new_page()
            page.set_default_timeout(WAIT_MS)
            page.goto(link)
            root = page.url

            def press(name: str) -> None:
                """Go to a button by Tab, and press it."""
                for _ in range(60):
                    if page.locator("button:focus").all_inner_texts() == [name]:
                        break
                    page.keyboard.press("Tab")
                page.keyboard.press("Enter")

            page.goto(f"{root}waiting")
            press("Approve")
            page.get_by_text("calc__date_difference: approved.").wait_for()
            assert page.locator("article:focus").count() == 1
            page.keyboard.press("Enter")
            press("Deny")
            page.get_by_text("calc__date_difference: denied.").wait_for()
            page.get_by_text("No call and no definition waits for you.").wait_for()
            page.goto(f"{root}server?name=calc")
            press("Disable")
            page.get_by_text("Disable calc?").wait_for()
            assert page.locator("button:focus").all_inner_texts() == ["Disable"]
            press("Disable")
            page.get_by_text("calc is disabled.").wait_for()
            assert file.read_text() != before
            press("Undo")
            page.get_by_text("That is undone.").wait_for()
            assert file.read_text() == before
        finally:
            chromium.close()


@pytest.mark.parametrize("scripts", [True, False])
def test_a_setting_is_tried_made_and_undone_and_a_tool_is_called(tmp_path: Path, scripts: bool) -> None:
    write_settings(tmp_path, {**SETTINGS, "gateway": {"tools_exposure": "full_proxy"}})
    before = (tmp_path / "config.yaml").read_text()
    with console(tmp_path) as (_, link), playwright.sync_playwright() as engines:
        chromium = engines.chromium.launch(executable_path=browser(), args=["--no-sandbox"])
        try:
            page = chromium.new_context(java_script_enabled=scripts).new_page()
            page.set_default_timeout(WAIT_MS)
            page.goto(link)
            root = page.url
            page.goto(f"{root}lists")
            assert page.locator("h1").inner_text() == "What a client sees", page.locator("main").inner_text()
            page.get_by_text("Try other settings").click()
            page.get_by_label("gateway.blacklisted_tools").fill("calc:date_*\ncalc:factorize")
            page.get_by_role("button", name="Show the effect").click()
            page.get_by_text("0 tools would come in and 2 tools go out").wait_for()
            page.get_by_role("button", name="Make it so").click()
            assert (tmp_path / "config.yaml").read_text() == before
            page.get_by_role("button", name="Change").press("Enter")
            page.get_by_text("blacklisted by 'calc:date_*'").wait_for()
            page.get_by_role("button", name="Undo").click()
            page.get_by_text("That is undone.").wait_for()
            assert (tmp_path / "config.yaml").read_text() == before
            page.goto(f"{root}tool?name=calc__factorize")
            page.get_by_label("number").first.fill("twelve")
            page.get_by_role("button", name="Call it").click()
            page.get_by_text("calc__factorize was not called: number").wait_for()
            page.get_by_label("number").first.fill("12")
            page.get_by_role("button", name="Call it").click()
            page.get_by_text("calc__factorize answered.").wait_for()
        finally:
            chromium.close()
