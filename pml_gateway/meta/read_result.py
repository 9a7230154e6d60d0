"""`read_result`: a page of a stored result for the client that caused it."""

from __future__ import annotations

from collections.abc import Sequence

from pml_gateway.config.settings import Settings
from pml_gateway.errors import InvalidInputError
from pml_gateway.exposure.meta_tool import MetaTool
from pml_gateway.gateway.calling import CallContext
from pml_gateway.meta.arguments import integer, string
from pml_gateway.results.content import data_result
from pml_gateway.results.paging import page_of
from pml_gateway.results.store import visible_to
from pml_gateway.types import JsonObject

CHARACTERS_PER_TOKEN = 3
"""Of JSON and prose in o200k_base: a page then stays below the threshold at which results are stored at all."""

MAX_OFFSET = 10**9


def definition(_: Sequence[str]) -> JsonObject:
    """How it is listed."""
    return {
        "name": "read_result",
        "description": 'Page a stored result; tools take {"$ref": ref, "path": jmespath} as argument.',
        "inputSchema": {
            "type": "object",
            "properties": {
                "ref": {"type": "string"},
                "path": {"type": "string"},
                "offset": {"type": "integer"},
                "limit": {"type": "integer"},
            },
            "required": ["ref"],
        },
        "annotations": {"readOnlyHint": True},
    }


def keeps_results(settings: Settings) -> bool:
    """Whether there is anything to read."""
    return settings.references.mode != "off"


async def read_result(context: CallContext, arguments: JsonObject) -> JsonObject:
    """One page: characters of text, items or fields of JSON, bytes of binary content."""
    ref = string(arguments, "ref", default="")
    if not ref:
        raise InvalidInputError("ref: the reference to read is missing", hint='for example {"ref": "ref_..."}')
    path = string(arguments, "path", default="") or None
    offset = integer(arguments, "offset", default=0, minimum=0, maximum=MAX_OFFSET)
    given = arguments.get("limit") is not None
    limit = integer(arguments, "limit", default=1, minimum=1, maximum=MAX_OFFSET) if given else None
    results = context.gateway.results
    content = await results.read(context.scope.client, ref, visible_to(context.view))
    budget = results.settings.threshold_tokens * CHARACTERS_PER_TOKEN
    page = await page_of(content, path, offset, limit, budget)
    return data_result({"ref": ref, **page})


READ_RESULT = MetaTool(
    "read_result", definition, read_result, is_useful=keeps_results, beside_namespaces=lambda _: definition(())
)
