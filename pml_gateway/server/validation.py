"""Arguments are checked against a tool's own schema before anything is sent."""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from typing import Any

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.schema import MAX_BYTES
from pml_gateway.catalog.wire import encode
from pml_gateway.errors import InvalidInputError
from pml_gateway.exposure.signature import signature
from pml_gateway.types import JsonObject

MAX_ERRORS = 5
MAX_MESSAGE = 240
_REGEX_KEYWORDS = ("pattern", "patternProperties")


def check_arguments(tool: CatalogTool, arguments: JsonObject) -> None:
    """Refuse arguments that the tool's original schema refuses.

    Patterns are left to the upstream: Python's `re` can run for hours on a hostile one and cannot be interrupted.
    References outside the schema are never fetched; a schema that needs them is left to the upstream as well.

    Raises:
        InvalidInputError: with a JSON pointer per fault and the tool's signature.
    """
    problems = _problems(tool, arguments)
    if not problems:
        return
    call = signature(tool.qualified_name, tool.input_schema)
    listed = "; ".join(f"{problem['path'] or '/'}: {problem['message']}" for problem in problems)
    raise InvalidInputError(
        f"invalid arguments for {tool.qualified_name}: {listed}",
        hint=f"expected {call}",
        details={"errors": problems, "signature": call},
    )


def _problems(tool: CatalogTool, arguments: JsonObject) -> list[JsonObject]:
    from referencing.exceptions import Unresolvable

    validator = _validator(tool)
    if validator is None:
        return []
    try:
        errors = list(islice(validator.iter_errors(arguments), MAX_ERRORS))
    except (Unresolvable, RecursionError):
        return []
    return [
        {"path": "".join(f"/{part}" for part in error.absolute_path), "message": error.message[:MAX_MESSAGE]}
        for error in sorted(errors, key=lambda error: [str(part) for part in error.absolute_path])
    ]


@lru_cache(maxsize=2048)
def _validator(tool: CatalogTool) -> Any:
    # Imported on the first check: jsonschema takes 0.1 s, which a gateway that only lists never needs.
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for
    from referencing import Registry

    try:
        if len(encode(tool.input_schema)) > MAX_BYTES:
            return None
        schema = _without_patterns(tool.input_schema)
        kind = validator_for(schema, default=Draft202012Validator)
        kind.check_schema(schema)
        return kind(schema, registry=Registry())
    except (SchemaError, RecursionError):
        return None


def _without_patterns(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_patterns(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    dropped = set(_REGEX_KEYWORDS) if isinstance(schema.get("pattern", ""), str) else {"patternProperties"}
    if isinstance(schema.get("patternProperties"), dict):
        dropped.add("additionalProperties")
    return {key: _without_patterns(value) for key, value in schema.items() if key not in dropped}
