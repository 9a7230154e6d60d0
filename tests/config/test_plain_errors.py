"""Errors of the configuration are in a newcomer's words, whatever is written where."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from pml_gateway.config.layers import layer_of
from pml_gateway.config.problems import all_keys, validation_problems
from pml_gateway.config.settings import Settings

pytestmark = pytest.mark.field("C3")

JARGON = re.compile(
    r"tuple|\bdict|valid (?:string|integer|number|list|boolean|datetime)|unable to|instance|\bInput\b|\bNone\b|"
    r"\bTrue\b|\bFalse\b|pydantic|type=|finite|\bstr\b|\bint\b|<enum",
)
WRONG: tuple[Any, ...] = (
    *("perhaps", "", 3.7, -1, 10**30, float("nan"), True, None),
    *([], ["x"], [[1]], {}, {"a": {"b": 1}}, {"a": 1}),
)
OF_ENTRIES = {
    "servers": "command args env cwd url headers auth transport enabled sessions call_timeout",
    "clients": "key allow deny mode intent",
    "workflows": "description steps input output on_error",
}


def complaints(path: tuple[Any, ...], value: Any) -> list[str]:
    for key in reversed(path):
        value = {key: value}
    try:
        Settings.model_validate(value)
    except ValidationError as error:
        return list(map(str, validation_problems(error, layer_of("user", value, "config.yaml"))))
    return []


@pytest.mark.parametrize("section", sorted({str(path[0]) for path in all_keys()}))
def test_no_error_speaks_of_the_inside_of_a_library(section: str) -> None:
    paths = [path for path in all_keys() if path[0] == section]
    if section in OF_ENTRIES:
        paths += [(section, "x"), *((section, "x", key) for key in OF_ENTRIES[section].split())]

    said = [text for path in paths for value in WRONG for text in complaints(path, value)]

    assert said
    assert [text for text in said if JARGON.search(text)] == []
