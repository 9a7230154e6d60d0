"""Mode and intent of a request come from the first source that gives one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pml_gateway.config.settings import GatewaySection
from pml_gateway.gateway.request import (
    MAX_INTENT_LENGTH,
    QUERY_META_KEY,
    RequestScope,
    call_intent,
    effective_mode,
    list_intent,
)
from pml_gateway.types import ExposureMode
from tests.catalog.listings import JSON
from tests.support.principals import principal

SOURCES = ("query", "meta", "url", "client", "gateway")


def request(**given_by: str | None) -> tuple[dict[str, Any], RequestScope, GatewaySection]:
    params: dict[str, Any] = {}
    if "query" in given_by:
        params["query"] = given_by["query"]
    if "meta" in given_by:
        params["_meta"] = {QUERY_META_KEY: given_by["meta"]}
    client = principal("client:a", intent=given_by.get("client"))
    return (
        params,
        RequestScope(client=client, url_query=given_by.get("url")),
        GatewaySection(intent=given_by.get("gateway")),
    )


@given(present=st.sets(st.sampled_from(SOURCES)))
def test_the_first_source_in_the_documented_order_wins(present: set[str]) -> None:
    params, scope, settings = request(**{source: f"from {source}" for source in present})
    first = next((source for source in SOURCES if source in present), None)
    assert list_intent(params, scope, settings) == (f"from {first}" if first else None)


@given(present=st.sets(st.sampled_from(SOURCES)))
def test_a_call_knows_only_the_url_the_client_and_the_gateway(present: set[str]) -> None:
    _, scope, settings = request(**{source: f"from {source}" for source in present})
    first = next((source for source in SOURCES[2:] if source in present), None)
    assert call_intent(scope, settings) == (f"from {first}" if first else None)


@pytest.mark.parametrize("source", SOURCES[:-1])
@pytest.mark.parametrize("blank", ["", "   ", "\n\t"])
def test_a_blank_source_gives_way_to_the_next(source: str, blank: str) -> None:
    params, scope, settings = request(**{source: blank, "gateway": "from gateway"})
    assert list_intent(params, scope, settings) == "from gateway"


@pytest.mark.parametrize("wrong", [5, None, True, ["read"], {"text": "read"}])
def test_a_source_that_is_no_text_gives_way_to_the_next(wrong: object) -> None:
    scope = RequestScope(url_query="from url")
    settings = GatewaySection()
    assert list_intent({"query": wrong}, scope, settings) == "from url"
    assert list_intent({"_meta": {QUERY_META_KEY: wrong}}, scope, settings) == "from url"
    assert list_intent({"_meta": wrong}, scope, settings) == "from url"


def test_no_source_means_no_intent() -> None:
    assert list_intent(None, RequestScope(), GatewaySection()) is None
    assert list_intent({}, RequestScope(), GatewaySection()) is None
    assert call_intent(RequestScope(), GatewaySection()) is None


def test_an_intent_is_one_line_of_bounded_length() -> None:
    settings = GatewaySection()
    assert list_intent({"query": "  read\n a\tfile "}, RequestScope(), settings) == "read a file"
    cut = list_intent({"query": "x" * 5_000}, RequestScope(), settings)
    assert cut == "x" * MAX_INTENT_LENGTH


@given(params=st.none() | st.dictionaries(st.sampled_from(("query", "_meta", "cursor")), JSON))
def test_any_parameters_give_an_intent_or_none(params: dict[str, Any] | None) -> None:
    intent = list_intent(params, RequestScope(), GatewaySection())
    assert intent is None or (intent == " ".join(intent.split()) and intent)


@pytest.mark.parametrize("client", [None, ExposureMode.META_ONLY])
@pytest.mark.parametrize("endpoint", [None, ExposureMode.SEMANTIC])
def test_the_clients_mode_wins_over_the_endpoints_and_that_over_the_configured_one(
    client: ExposureMode | None, endpoint: ExposureMode | None
) -> None:
    scope = RequestScope(client=principal("client:a", mode=client), mode=endpoint)
    settings = GatewaySection(tools_exposure=ExposureMode.HYBRID)
    assert effective_mode(scope, settings) == (client or endpoint or ExposureMode.HYBRID)
