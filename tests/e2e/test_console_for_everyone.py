"""The console for everyone: every page and the question of every change by the rules of WCAG 2.1, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.console.pages import PAGES
from tests.support.process import run_pml, write_settings

from .install import InstallationError, install_axe
from .test_apps_in_a_browser import browser
from .test_console import ATTACHING, SETTINGS, console

playwright = pytest.importorskip("playwright.sync_api", reason="drives a browser")

pytestmark = [pytest.mark.e2e, pytest.mark.heavy, pytest.mark.timeout(600)]

WAIT_MS = 60_000
WCAG = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa")
SERIOUS = ("serious", "critical")
ASKING = SETTINGS | {
    "rules": [{"match": {"tool": "calc:date_*"}, "do": "ask"}],
    "approvals": {"hold_seconds": 0, "notify": False},
}
CALL = ("call", "calc__date_difference", '{"start": "2026-01-01", "end": "2026-02-01"}')


@dataclass
class Visit:
    """A page of the console in a browser, and what went wrong while it was used."""

    page: Any
    root: str
    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def links(self) -> dict[str, str]:
        """An address for each page that the shown one leads to, by name."""
        found: dict[str, str] = {}
        for link in self.page.locator("main a[href]").all():
            address = str(link.get_attribute("href"))
            name = address.partition("?")[0].removeprefix(self.root.removeprefix(_origin(self.root)))
            found.setdefault(name, _origin(self.root) + address)
        return found

    def check(self, width: int) -> None:
        """Check what holds for every page."""
        where = self.page.url
        assert self.page.locator("h1").count() == 1, where
        assert self.page.locator("nav a[aria-current]").count() <= 1, where
        assert self.page.evaluate("document.documentElement.scrollWidth") <= width, where
        self.page.evaluate(_axe())
        found = self.page.evaluate(
            "tags => axe.run(document, {runOnly: tags, resultTypes: ['violations']})", list(WCAG)
        )
        faults = [
            (each["id"], each["impact"], [node["html"][:200] for node in each["nodes"]][:3])
            for each in found["violations"]
            if each["impact"] in SERIOUS
        ]
        assert faults == [], where


def _origin(address: str) -> str:
    return "/".join(address.split("/")[:3])


def _axe() -> str:
    try:
        return install_axe().read_text(encoding="utf-8")
    except InstallationError as exc:
        pytest.skip(str(exc))


@contextmanager
def visit(link: str, *, scheme: str = "light", width: int = 1280, scripts: bool = True) -> Iterator[Visit]:
    """Open a link; afterwards nothing may have failed, and no other host been asked."""
    with playwright.sync_playwright() as engines:
        # The browser's own sandbox needs rights that containers do not give.
        chromium = engines.chromium.launch(executable_path=browser(), args=["--no-sandbox"])
        try:
            opened = chromium.new_context(
                color_scheme=scheme, viewport={"width": width, "height": 800}, java_script_enabled=scripts
            )
            page = opened.new_page()
            page.set_default_timeout(WAIT_MS)
            visited = Visit(page, "")
            page.on("console", lambda message: visited.errors.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: visited.errors.append(str(error)))
            page.on("request", lambda request: visited.hosts.add(request.url.split("/")[2]))
            page.goto(link)
            visited.root = page.url
            yield visited
        finally:
            chromium.close()
    # A page or form without its values answers that something is missing, which browsers log.
    assert [error for error in visited.errors if not re.search(r"status of (400|409|502) ", error)] == []
    assert visited.hosts == {link.split("/")[2]}


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 360), ("dark", 360)])
def test_everyone_can_use_every_page_and_the_question_of_every_change(tmp_path: Path, scheme: str, width: int) -> None:
    """New pages are looked at as soon as they are in `PAGES`, with their parameters if another page leads to them."""
    write_settings(tmp_path, ASKING)
    with console(tmp_path) as (_, link):
        run_pml(tmp_path, *CALL, extra=ATTACHING)
        run_pml(tmp_path, "call", "calc__nothing", extra=ATTACHING)
        with visit(link, scheme=scheme, width=width) as visited:
            left = {page: visited.root + page for page in PAGES}
            looked_at: dict[str, str] = {}
            forms: dict[str, str] = {}
            while left:
                name, address = left.popitem()
                looked_at[name] = address
                visited.page.goto(address)
                visited.check(width)
                for form in visited.page.locator("main form[method=post]").all():
                    forms.setdefault(str(form.get_attribute("action")).rpartition("/")[2], address)
                for found, better in visited.links().items():
                    if found in PAGES and "?" in better and "?" not in looked_at.get(found, ""):
                        left[found] = better
            assert {"server", "tool", "access"} <= {name for name, each in looked_at.items() if "?" in each}
            assert {"approve", "deny", "disable"} <= forms.keys()
            for change in forms.keys() - {"approve", "repair", "restart"}:
                visited.page.goto(forms[change])
                with visited.page.expect_navigation():
                    visited.page.locator(f"form[action$='/do/{change}']").first.evaluate("form => form.submit()")
                visited.check(width)


def test_an_open_page_follows_the_gateway(tmp_path: Path) -> None:
    write_settings(tmp_path, SETTINGS)
    with console(tmp_path) as (_, link), visit(link) as visited:
        visited.page.goto(f"{visited.root}servers")
        visited.page.wait_for_load_state("load")
        assert run_pml(tmp_path, "disable", "calc", "--yes").returncode == 0
        visited.page.get_by_text(re.compile("disabled")).first.wait_for()


def test_the_owners_token_is_enough_in_a_browser(tmp_path: Path) -> None:
    write_settings(tmp_path, SETTINGS | {"http": {"console": True, "port": 0}})
    token = run_pml(tmp_path, "keys", "add", "--owner").stdout.strip()
    try:
        assert run_pml(tmp_path, "up", "--http", extra=ATTACHING).returncode == 0
        link = run_pml(tmp_path, "console", "--no-open", extra=ATTACHING).stdout.strip()
        with visit(link.partition("?")[0], width=360) as visited:
            visited.check(360)
            visited.page.get_by_label("Your token").fill(token)
            visited.page.keyboard.press("Enter")
            visited.page.wait_for_url("**/console/*/")
            visited.page.goto(f"{visited.page.url}servers")
            assert "calc" in visited.page.locator("main").inner_text()
    finally:
        run_pml(tmp_path, "down", extra=ATTACHING)
