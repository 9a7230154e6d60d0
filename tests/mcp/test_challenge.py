"""What a refusal asks for, whichever way a server writes it."""

from __future__ import annotations

import pytest

from pml_gateway.mcp.http import Challenge, plain


@pytest.mark.parametrize(
    ("status", "header", "scope"),
    [
        (403, 'Bearer error="insufficient_scope", scope="a b"', "a b"),
        (403, "Bearer error=insufficient_scope,scope=a", "a"),
        (403, 'bearer scope="a", ERROR="insufficient_scope"', "a"),
        (403, 'Bearer error="insufficient_scope"', ""),
        (403, 'Bearer error="insufficient_scope", scope="a\x1b[2J"', ""),
        (403, 'Bearer error="invalid_token"', None),
        (403, 'Bearer xerror="insufficient_scope"', None),
        (401, 'Bearer error="insufficient_scope", scope="a"', None),
        (403, "", None),
    ],
)
def test_a_missing_scope_is_found(status: int, header: str, scope: str | None) -> None:
    assert Challenge(status, header).missing_scope == scope


@pytest.mark.parametrize(
    ("header", "is_bearer"),
    [("Bearer", True), ('bearer realm="x"', True), ('Basic realm="x", Bearer', True), ("Basic", False), ("", False)],
)
def test_a_server_that_wants_a_token_is_told_from_one_that_wants_something_else(header: str, is_bearer: bool) -> None:
    assert Challenge(401, header).is_bearer is is_bearer


def test_what_a_server_said_is_short_and_moves_no_cursor() -> None:
    assert plain("no\x1b[2J" + "x" * 999) == "no[2J" + "x" * 195
