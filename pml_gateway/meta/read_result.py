"""`read_result`: a page of a stored result for the client that caused it."""

from __future__ import annotations

import anyio.to_thread

from pml_gateway.errors import InvalidInputError
from pml_gateway.gateway.answers import data_result
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.request import CallOptions, RequestScope
from pml_gateway.gateway.settle import visible_to
from pml_gateway.meta.arguments import integer, string
from pml_gateway.results.paging import page_of
from pml_gateway.types import JsonObject

CHARACTERS_PER_TOKEN = 3
"""Of JSON and prose in o200k_base: a page then stays below the threshold at which results are stored at all."""

MAX_OFFSET = 10**9


class StoredResults:
    """Answers `read_result`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def read_result(self, scope: RequestScope, arguments: JsonObject, _: CallOptions) -> JsonObject:
        """One page: characters of text, items or fields of JSON, bytes of binary content."""
        ref = string(arguments, "ref", default="")
        if not ref:
            raise InvalidInputError("ref: the reference to read is missing", hint='for example {"ref": "ref_..."}')
        path = string(arguments, "path", default="") or None
        offset = integer(arguments, "offset", default=0, minimum=0, maximum=MAX_OFFSET)
        given = arguments.get("limit") is not None
        limit = integer(arguments, "limit", default=1, minimum=1, maximum=MAX_OFFSET) if given else None
        results = self._gateway.results
        view = self._gateway.state.view(scope.client)
        content = await results.read(scope.client, ref, visible_to(view))
        budget = results.settings.threshold_tokens * CHARACTERS_PER_TOKEN
        page = await anyio.to_thread.run_sync(page_of, content, path, offset, limit, budget)
        return data_result({"ref": ref, **page})
