"""Arguments checked against a tool's own schema, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import lru_cache
from itertools import islice
from typing import Any

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.schema import MAX_BYTES, escaped
from pml_gateway.catalog.wire import encode
from pml_gateway.errors import InvalidInputError
from pml_gateway.exposure.schema_text import signature
from pml_gateway.types import JsonObject

MAX_ERRORS = 5
MAX_MESSAGE = 240
MAX_STEPS = 50_000
"""Keywords evaluated in one check, under half a second: references can name each other in exponentially many ways."""

MAX_UNIQUE_ITEMS = 1000
"""Longest list whose items are compared with each other, which takes quadratic time."""

_REGEX_KEYWORDS = (b'"pattern"', b'"patternProperties"')


def check_arguments(tool: CatalogTool, arguments: JsonObject) -> None:
    """Refuse arguments that the tool's original schema refuses.

    Patterns are left to the upstream: Python's `re` can run for hours on a hostile one and cannot be interrupted.
    References outside the schema are never fetched; a schema that needs them is left to the upstream as well.

    Raises:
        InvalidInputError: with a JSON pointer per fault and the tool's signature.
    """
    problems = argument_problems(tool, arguments)
    if not problems:
        return
    call = signature(tool.qualified_name, tool.definition["inputSchema"])
    listed = "; ".join(f"{problem['path'] or '/'}: {problem['message']}" for problem in problems)
    raise InvalidInputError(
        f"invalid arguments for {tool.qualified_name}: {listed}",
        hint=f"expected {call}",
        details={"errors": problems, "signature": call},
    )


def check_object(arguments: object) -> None:
    """Refuse arguments that a reference made anything but an object, which no call can carry.

    Raises:
        InvalidInputError: says what they are.
    """
    if isinstance(arguments, dict):
        return
    kind = {str: "a text", list: "a list", bool: "a boolean", type(None): "null"}.get(type(arguments), "a number")
    raise InvalidInputError(
        f"the arguments are {kind} instead of an object",
        hint="put the reference in the place of one argument, or give it a path to an object",
    )


def open_problems(tool: CatalogTool, arguments: JsonObject, unknown: frozenset[str]) -> list[JsonObject]:
    """What the tool's schema refuses, however the values at the `unknown` JSON pointers will turn out."""
    return argument_problems(tool, arguments, lambda error: _is_certain(error, unknown))


class _TooManyStepsError(Exception):
    """A check took more steps than an honest schema needs."""


_STEPS: ContextVar[list[None]] = ContextVar("pml_gateway_validation_steps")


_ABOUT_NAMES = frozenset({"required", "additionalProperties", "dependentRequired", "propertyNames"})
"""Keywords that refuse an object for the names in it, whatever their values."""


def _is_certain(error: Any, unknown: frozenset[str]) -> bool:
    at = _pointer(error)
    if any(at == pointer or at.startswith(f"{pointer}/") for pointer in unknown):
        return False
    # An unknown value further down may be what a combination of schemas refuses.
    return error.validator in _ABOUT_NAMES or not any(pointer.startswith(f"{at}/") for pointer in unknown)


def argument_problems(
    tool: CatalogTool, arguments: JsonObject, counts: Callable[[Any], bool] = lambda _: True
) -> list[JsonObject]:
    """What the tool's original schema refuses, each as `path` (a JSON pointer) and `message`; see `check_arguments`.

    `counts` says which of the validator's errors to take.
    """
    from referencing.exceptions import Unresolvable

    validator = _validator(tool)
    if validator is None:
        return []
    token = _STEPS.set([])
    try:
        errors = list(islice(filter(counts, validator.iter_errors(arguments)), MAX_ERRORS))
    except (Unresolvable, RecursionError, _TooManyStepsError, ArithmeticError, TypeError, ValueError, AttributeError):
        # References to what is no schema make the validator stumble anywhere.
        return []
    finally:
        _STEPS.reset(token)
    return [
        {"path": _pointer(error), "message": error.message[:MAX_MESSAGE]}
        for error in sorted(errors, key=lambda error: [str(part) for part in error.absolute_path])
    ]


def _pointer(error: Any) -> str:
    return "".join(f"/{escaped(str(part))}" for part in error.absolute_path)


@lru_cache(maxsize=2048)
def _validator(tool: CatalogTool) -> Any:
    """The validator of the original schema, of the repaired one where that is no schema, or none."""
    for schema in (tool.input_schema, tool.definition["inputSchema"]):
        validator = _compiled(schema)
        if validator is not None:
            return validator
    return None


def _compiled(schema: JsonObject) -> Any:
    # Imported on the first check: jsonschema takes 0.1 s, which a gateway that only lists never needs.
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import extend, validator_for
    from referencing import Registry

    try:
        text = encode(schema)
        if len(text) > MAX_BYTES:
            return None
        kind = validator_for(schema, default=Draft202012Validator)
        kind.check_schema(schema, format_checker=None)
        keywords = _bounded(dict(kind.VALIDATORS))
        if any(keyword in text for keyword in _REGEX_KEYWORDS):
            keywords = _without_patterns(keywords)
        counted = {keyword: _counted(evaluate) for keyword, evaluate in keywords.items()}
        return extend(kind, validators=counted)(_in_one_dialect(schema), registry=Registry())
    except (SchemaError, RecursionError, TypeError, ValueError, AttributeError, KeyError):
        return None


def _in_one_dialect(value: Any) -> Any:
    """`value` without `$schema`, at which the validator would go on with keywords that are not ours."""
    if isinstance(value, list):
        return [_in_one_dialect(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {key: _in_one_dialect(item) for key, item in value.items() if not _names_dialect(key, item)}
    # A choice that is itself a schema with a dialect would no longer be the value it stands for.
    return {key: item for key, item in kept.items() if key not in ("const", "enum") or item == value[key]}


def _names_dialect(key: str, value: object) -> bool:
    return key == "$schema" and isinstance(value, str)


_Evaluate = Callable[[Any, Any, Any, Any], Iterator[Any] | None]
"""A keyword of jsonschema: (validator, keyword's value, instance, schema) to errors."""


def _without_patterns(keywords: dict[str, _Evaluate]) -> dict[str, _Evaluate]:
    """The keywords with no regular expression run; what would refuse more for that accepts instead."""
    ignored = ("pattern", "patternProperties", "not", "if", "unevaluatedProperties")
    lenient = {key: _ignore if key in ignored else evaluate for key, evaluate in keywords.items()}
    if "oneOf" in lenient:
        lenient["oneOf"] = keywords["anyOf"]
    for key, unless in (("additionalProperties", "patternProperties"), ("contains", "maxContains")):
        if key in lenient:
            lenient[key] = _unless_beside(unless, lenient[key])
    return lenient


def _bounded(keywords: dict[str, _Evaluate]) -> dict[str, _Evaluate]:
    if "uniqueItems" in keywords:
        keywords["uniqueItems"] = _short_lists_only(keywords["uniqueItems"])
    return keywords


def _ignore(validator: Any, value: Any, instance: Any, schema: Any) -> None:
    return None


def _unless_beside(keyword: str, evaluate: _Evaluate) -> _Evaluate:
    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any] | None:
        return None if keyword in schema else evaluate(validator, value, instance, schema)

    return check


def _short_lists_only(evaluate: _Evaluate) -> _Evaluate:
    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any] | None:
        if isinstance(instance, list) and len(instance) > MAX_UNIQUE_ITEMS:
            return None
        return evaluate(validator, value, instance, schema)

    return check


def _counted(evaluate: _Evaluate) -> _Evaluate:
    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any] | None:
        steps = _STEPS.get()
        steps.append(None)
        if len(steps) > MAX_STEPS:
            raise _TooManyStepsError
        return evaluate(validator, value, instance, schema)

    return check
