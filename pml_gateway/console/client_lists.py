"""The page about a client's list: every tool with the reason why it is in or out, and what other settings would do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pml_gateway.config.single_settings import read_setting
from pml_gateway.console.request import PageRequest
from pml_gateway.errors import GatewayError
from pml_gateway.owner.operations import EXPLAIN
from pml_gateway.reports.settings import setting_of, setting_text
from pml_gateway.reports.verdicts import reason_in_words
from pml_gateway.text import shown_score
from pml_gateway.types import ExposureMode, JsonObject

TRIED = "try."
"""Start of the name of a field whose value is tried instead of the configured one."""

MAX_TRIED = 10_000
"""Characters of a tried value that are read."""


async def lists(request: PageRequest) -> JsonObject:
    """Return every tool, with the reason why a client is listed it or not, and the effect of tried settings."""
    asked = {name: request.text(name) for name in ("client", "set", "mode", "intent", "tool")}
    if asked["mode"] and asked["mode"] not in [*ExposureMode]:
        raise GatewayError(f"unknown mode {asked['mode']!r}", hint=f"known are {', '.join(ExposureMode)}")
    arguments: JsonObject = {
        "query": asked["intent"] or None,
        "client": asked["client"] or None,
        "is_mode_given": bool(asked["mode"]),
        "searched": [],
        "sets": [asked["set"]] if asked["set"] and not asked["client"] else [],
        "tried": {},
    }
    explained = await request.source.ask(EXPLAIN, arguments, mode=asked["mode"] or None)
    configured, tried, wrong = explained["deciding"], {}, ""
    try:
        tried = _tried(request.parameters, configured)
        if tried:
            explained = await request.source.ask(EXPLAIN, {**arguments, "tried": tried}, mode=asked["mode"] or None)
    except GatewayError as error:
        wrong = error.message
    change = explained["change"]
    comes_in, goes_out = (set(change["comes_in"]), set(change["goes_out"])) if change else (set(), set())
    rows: list[JsonObject] = [
        {
            **row,
            "score": "" if row["score"] is None else shown_score(row["score"]),
            "why": reason_in_words(row),
            "moves": "in" if row["name"] in comes_in else "out" if row["name"] in goes_out else "",
        }
        for row in explained["tools"]
    ]
    rows.sort(key=lambda row: not row["moves"])
    part = asked["tool"].casefold()
    return {
        **explained,
        "modes": [*ExposureMode],
        "asked": asked,
        "fields": [_field(request.parameters, key, value) for key, value in configured.items()],
        "tried": tried,
        "values": json.dumps(tried),
        "wrong": wrong,
        "listed": sum(row["listed"] for row in rows),
        "total": len(rows),
        "rows": request.page([row for row in rows if part in row["name"].casefold()]),
    }


def _tried(parameters: Mapping[str, str], configured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given values that are not the configured ones, by key."""
    given = {key: parameters[TRIED + key][:MAX_TRIED] for key in configured if TRIED + key in parameters}
    values = {key: read_setting(key, text) for key, text in given.items()}
    return {key: value for key, value in values.items() if value != configured[key]}


def _field(parameters: Mapping[str, str], key: str, value: Any) -> JsonObject:
    """Return a setting as a field of the form."""
    setting = setting_of(key)
    return {
        "key": key,
        "name": TRIED + key,
        "text": parameters.get(TRIED + key, setting_text(value))[:MAX_TRIED],
        "setting": setting,
        "is_list": setting is not None and setting.takes == "list of texts",
    }
