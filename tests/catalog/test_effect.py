"""The effect of a tool's calls and their repetition, from its annotations."""

from __future__ import annotations

from typing import Any

import pytest

from pml_gateway.catalog.build import build_catalog
from pml_gateway.catalog.model import CatalogTool, UpstreamListing
from pml_gateway.types import Effect


def annotated(annotations: Any) -> CatalogTool:
    listing = UpstreamListing("up", ({"name": "t", "inputSchema": {"type": "object"}, "annotations": annotations},))
    return build_catalog([listing]).tools[0]


@pytest.mark.parametrize(
    ("annotations", "effect"),
    [
        (None, Effect.UNKNOWN),
        ({}, Effect.UNKNOWN),
        ("read", Effect.UNKNOWN),
        ({"readOnlyHint": True}, Effect.READ),
        ({"readOnlyHint": True, "destructiveHint": False}, Effect.READ),
        ({"readOnlyHint": True, "destructiveHint": True}, Effect.DESTRUCTIVE),
        ({"readOnlyHint": False}, Effect.DESTRUCTIVE),
        ({"readOnlyHint": False, "destructiveHint": False}, Effect.WRITE),
        ({"readOnlyHint": False, "destructiveHint": True}, Effect.DESTRUCTIVE),
        ({"destructiveHint": True}, Effect.DESTRUCTIVE),
        ({"destructiveHint": False}, Effect.WRITE),
        ({"readOnlyHint": "yes"}, Effect.UNKNOWN),
        ({"readOnlyHint": 1, "destructiveHint": 0}, Effect.UNKNOWN),
        ({"readOnlyHint": True, "destructiveHint": "yes"}, Effect.READ),
        ({"idempotentHint": True}, Effect.UNKNOWN),
    ],
)
def test_the_hints_of_a_tool_declare_its_effect(annotations: Any, effect: Effect) -> None:
    assert annotated(annotations).effect is effect


@pytest.mark.parametrize(
    ("annotations", "idempotent"),
    [
        (None, False),
        ({}, False),
        ({"readOnlyHint": True}, True),
        ({"readOnlyHint": True, "idempotentHint": False}, True),
        ({"readOnlyHint": True, "destructiveHint": True}, False),
        ({"idempotentHint": True}, True),
        ({"destructiveHint": True, "idempotentHint": True}, True),
        ({"idempotentHint": "yes"}, False),
        ({"readOnlyHint": False, "destructiveHint": False}, False),
    ],
)
def test_a_tool_that_reads_or_says_so_may_be_called_again(annotations: Any, idempotent: bool) -> None:
    assert annotated(annotations).idempotent is idempotent


@pytest.mark.parametrize("effect", Effect)
def test_the_hints_of_an_effect_declare_it(effect: Effect) -> None:
    assert annotated(effect.hints).effect is effect
