"""Requests that cannot be served: the refusal names their id where it can be sent back."""

from __future__ import annotations

import json

import pytest

from pml_gateway.serve.messages.incoming import RefusedMessageError, as_bytes, read_incoming

pytestmark = [pytest.mark.anyio, pytest.mark.field("B11")]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (rb'{"jsonrpc":"2.0","id":"\udb5f","method":"ping"}', None),
        (b'{"jsonrpc":"2.0","id":"\xed\xa4\x92","method":"ping"}', None),
        (rb'{"jsonrpc":"2.0","id":"a","method":"ping","params":{"x":"\udb5f"}}', "a"),
    ],
)
async def test_half_a_surrogate_pair_is_refused_with_an_id_that_can_be_written(
    body: bytes, expected: str | None
) -> None:
    with pytest.raises(RefusedMessageError) as refused:
        await read_incoming(body)
    assert refused.value.answer is not None
    assert json.loads(as_bytes(refused.value.answer))["id"] == expected
