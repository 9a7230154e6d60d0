"""`read_result`: a page of a stored result, or search matches in it, for the client whose call produced it."""

from __future__ import annotations

from pml_gateway.config.settings import Settings
from pml_gateway.errors import InvalidInputError
from pml_gateway.exposure.instructions import NO_SYSTEMS, Systems
from pml_gateway.exposure.meta_tool import MetaTool
from pml_gateway.gateway.call import CallContext
from pml_gateway.gateway.handles import await_handle
from pml_gateway.meta.arguments import boolean, integer, string
from pml_gateway.meta.skills import skill_file
from pml_gateway.results.content import (
    Content,
    data_result,
    media_block,
    media_data,
    media_note,
    note_in_content,
    with_media,
)
from pml_gateway.results.lineage import call_of
from pml_gateway.results.paging import line_range, lines_of, page_of
from pml_gateway.results.paths import value_at
from pml_gateway.results.references import is_handle
from pml_gateway.results.searching import DEFAULT_MATCHES, MAX_CONTEXT, Search, matches_of
from pml_gateway.results.store import visible_to
from pml_gateway.types import Effect, JsonObject

CHARACTERS_PER_TOKEN = 3
"""Average of JSON and prose in o200k_base: a page then stays below the threshold at which results are stored."""

MAX_OFFSET = 10**9


def definition(systems: Systems) -> JsonObject:
    """Return the tool definition."""
    described = 'Page or grep a stored result; tools take {"$ref": ref, "path": jmespath} as argument.'
    return {
        "name": "read_result",
        "description": described + (" The ref of a skill is its URI." if systems.has_skills else ""),
        "inputSchema": {
            "type": "object",
            "properties": {
                "ref": {"type": "string"},
                "path": {"type": "string"},
                "search": {"type": "string"},
                "regex": {"type": "boolean"},
                "context": {"type": "integer"},
                "lines": {"type": "string"},
                "offset": {"type": "integer"},
                "limit": {"type": "integer"},
            },
            "required": ["ref"],
        },
        "annotations": Effect.READ.hints,
    }


def keeps_results(settings: Settings) -> bool:
    """Return True if results are stored at all."""
    return settings.references.mode != "off"


async def read_result(context: CallContext, arguments: JsonObject) -> JsonObject:
    """Return media unchanged; else a page, lines, or the matches of a search, of a stored result or file of a skill.

    The first page of a whole result names the call that made it.
    """
    ref = string(arguments, "ref", default="")
    if not ref:
        raise InvalidInputError("ref: the reference to read is missing", hint='for example {"ref": "ref_..."}')
    path = string(arguments, "path", default="") or None
    results, made_by = context.gateway.results, JsonObject()
    if not is_handle(ref) and (file := skill_file(context.view, ref)) is not None:
        about, content = await file.read(context)
        said = {"ref": file.uri, **about}
    else:
        if (state := await await_handle(context.calls.tasks, context.scope.client, ref)) is not None:
            return data_result(state)
        stored, content = await results.read(context.scope.client, ref, visible_to(context.view))
        source = stored.source
        said = {"ref": ref}
        made_by = {"made_by": call_of(source) | ({"refs": list(source.refs)} if source.refs else {})}
    budget = results.settings.threshold_tokens * CHARACTERS_PER_TOKEN
    given = {key for key, value in arguments.items() if value is not None}
    if "search" in given:
        return data_result({**said, **await matches_of(content, path, _search(arguments), budget)})
    for key in ("regex", "context"):
        if arguments.get(key):
            raise InvalidInputError(f"{key} belongs to search, which is missing", hint='add "search": "text"')
    if "lines" in given:
        if given & {"offset", "limit"}:
            raise InvalidInputError("lines or offset and limit, not both", hint="offset and limit count characters")
        return data_result({**said, **await lines_of(content, path, line_range(_lines(arguments)), budget)})
    if not given & {"offset", "limit"} and (block := await _media(content, path)) is not None:
        note = note_in_content(2, media_note(block) or "")
        return with_media(data_result({**said, "kind": "binary", "value": note}), [block])
    offset = integer(arguments, "offset", default=0, minimum=0, maximum=MAX_OFFSET)
    limit = integer(arguments, "limit", default=1, minimum=1, maximum=MAX_OFFSET) if "limit" in given else None
    page = await page_of(content, path, offset, limit, budget)
    if path is None and not given & {"offset", "limit"}:
        return data_result({**said, **page, **made_by})
    return data_result({**said, **page})


def _search(arguments: JsonObject) -> Search:
    return Search(
        text=string(arguments, "search", default=""),
        is_regex=boolean(arguments, "regex"),
        context=integer(arguments, "context", default=0, minimum=0, maximum=MAX_CONTEXT),
        lines=line_range(_lines(arguments)) if arguments.get("lines") is not None else None,
        offset=integer(arguments, "offset", default=0, minimum=0, maximum=MAX_OFFSET),
        limit=integer(arguments, "limit", default=DEFAULT_MATCHES, minimum=1, maximum=MAX_OFFSET),
    )


def _lines(arguments: JsonObject) -> str:
    value = arguments["lines"]
    return str(value) if isinstance(value, int) else string(arguments, "lines", default="")


async def _media(content: Content, path: str | None) -> JsonObject | None:
    """Return the image or audio that a reference, or a path in it, stands for; None if it is something else."""
    if content.kind == "binary":
        return media_block(content.mime, content.value) if path is None else None
    value = await value_at(content, path) if content.kind == "json" else None
    return value if media_data(value) is not None else None


READ_RESULT = MetaTool(
    "read_result", definition, read_result, is_useful=keeps_results, beside_namespaces=lambda *_: definition(NO_SYSTEMS)
)
