"""`pml tokens`: what lists cost, by mode, server and tool, and when searching would have cost more."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.support.command_line import home_of, pml
from tests.support.golden import check_golden
from tests.support.process import OWN_GATEWAYS, STOP_SECONDS, environment, write_settings

DEMO = "pml_gateway.demo.servers"
SERVERS: dict[str, Any] = {
    name: {"command": sys.executable, "args": ["-m", f"{DEMO}.{name}", *arguments]}
    for name, arguments in (("calc", []), ("notes", ["notes.db"]))
}


@pytest.fixture(autouse=True, scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with home_of(tmp_path_factory.mktemp("tokens"), {"servers": SERVERS}) as home:
        yield home


def report(*options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(pml("tokens", "--json", *options).stdout)
    return found


@pytest.mark.slow
def test_the_report_is_readable_in_eighty_columns(home: Path) -> None:
    printed = pml("tokens", "--query", "convert units").stdout
    assert max(map(len, printed.splitlines())) <= 80
    numbers = re.sub(r" +", " ", re.sub(r"-?\d[\d,.]*%?", "N", printed))
    # Which of the dearest tools comes first is up to the servers.
    check_golden("tokens.txt", re.sub(r"\b(calc|notes)__\w+", "TOOL", numbers), {})


def test_without_an_intent_the_modes_that_select_are_compared_by_a_sample() -> None:
    found = report()
    assert found["sample"] == {"intents": 9, "source": "tools"}
    tokens = {row["mode"]: row["tokens"] for row in found["modes"]}
    assert tokens["meta_only"] < tokens["semantic"] <= tokens["hybrid"] < tokens["full_proxy"] + tokens["meta_only"]
    printed = pml("tokens").stdout
    assert [line.split()[:2] for line in printed.splitlines()[2:4]] == [["semantic", "~"], ["hybrid", "~"]]
    assert "~ the median of a sample of 9 intents (tools' own descriptions)" in printed
    assert max(map(len, printed.splitlines())) <= 80
    assert report("--query", "convert units")["sample"] is None


def test_parts_add_up_to_what_the_whole_costs(home: Path) -> None:
    assert report()["context_window"] == 200_000
    found = report("--context-window", "10000")
    modes = {row["mode"]: row for row in found["modes"]}
    full, meta = modes["full_proxy"], modes["meta_only"]
    assert found["catalog_tools"] == full["tools"] == sum(row["tools"] for row in found["servers"])
    # The list adds brackets and commas to the tools, which may be one token with what they follow.
    assert abs(full["tokens"] - sum(row["tokens"] for row in found["servers"])) <= full["tools"] + 2
    assert full["of_context_window"] == round(full["tokens"] / 10_000, 4)
    dearest = [row["tokens"] for row in found["dearest_tools"]]
    assert len(dearest) == 10
    assert dearest == sorted(dearest, reverse=True)
    even = found["break_even"]
    spent = meta["tokens"] + even["searches"] * even["search_tokens"]
    assert spent > full["tokens"] >= spent - even["search_tokens"]


def test_a_chart_has_a_bar_for_each_mode(home: Path, tmp_path: Path) -> None:
    drawn = tmp_path / "tokens.svg"
    modes = report("--chart", str(drawn))["modes"]
    picture = ElementTree.fromstring(drawn.read_text(encoding="utf-8"))
    texts = [element.text for element in picture if element.tag.endswith("text")]
    assert {row["mode"] for row in modes} <= set(texts)
    bars = [float(element.attrib["width"]) for element in picture if element.tag.endswith("rect")][1:]
    costs = sorted((row["tokens"] for row in modes), reverse=True)
    assert [round(bar / bars[0], 1) for bar in bars] == [round(cost / costs[0], 1) for cost in costs]


def test_a_chart_is_an_svg_that_can_be_written(home: Path, tmp_path: Path) -> None:
    assert "does not end in .svg" in pml("tokens", "--chart", "tokens.png", code=2).stderr
    assert "cannot be written" in pml("tokens", "--chart", str(tmp_path / "no" / "folder.svg"), code=2).stderr


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_watching_ends_with_a_signal_even_where_a_script_started_it_in_the_background(
    home: Path, tmp_path: Path, sent: signal.Signals
) -> None:
    own = tmp_path / "watched"
    write_settings(own, {"servers": {"calc": SERVERS["calc"]}})
    # A shell without job control has its background processes ignore SIGINT.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = watching(own)
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        process.send_signal(sent)
        assert process.wait(STOP_SECONDS) == 128 + sent
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def watching(own: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "pml_gateway", "tokens", "--watch", "--json"],
        env=environment(own, OWN_GATEWAYS),
        cwd=own,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


@pytest.mark.slow
def test_watching_counts_anew_when_the_configuration_changes(home: Path, tmp_path: Path) -> None:
    own = tmp_path / "watched"
    write_settings(own, {"servers": SERVERS})
    process = watching(own)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if {row["server"] for row in json.loads(line)["servers"] if row["tools"]} == set(SERVERS):
                break
        write_settings(own, {"servers": {"calc": SERVERS["calc"]}, "gateway": {"tools_exposure": "hybrid"}})
        for line in process.stdout:
            found = json.loads(line)
            if [row["server"] for row in found["servers"]] == ["calc"]:
                break
        assert [row["mode"] for row in found["modes"] if row["configured"]] == ["hybrid"]
    finally:
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(STOP_SECONDS) == 130
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
