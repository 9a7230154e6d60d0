"""Validation of arguments against a tool's original schema, before a call is sent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from typing import Any

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.pointers import escaped
from pml_gateway.catalog.schema import MAX_BYTES
from pml_gateway.catalog.wire import encode
from pml_gateway.errors import InvalidInputError
from pml_gateway.exposure.coercion import Undeclared, coerced, respelled, undeclared_in
from pml_gateway.exposure.parameter_names import ToolSubject, subject_of
from pml_gateway.exposure.schema_cost import SchemaCost, cost_of, parts_of
from pml_gateway.exposure.schema_text import signature
from pml_gateway.exposure.shallow_check import missing_names, wrong_types
from pml_gateway.processes.budget import RequestBudget, current_budget
from pml_gateway.processes.workers import Limit, WorkerLimitError
from pml_gateway.quotas import keep_latest
from pml_gateway.types import Effect, JsonObject

MAX_ERRORS = 5
MAX_MESSAGE = 240
MAX_NAME = 64

STEPS_OF_BUDGET = 5
"""Steps of a request's budget for each evaluated keyword: it takes as long as five evaluations of expressions."""

STEPS_TO_READ = 40
"""Steps of a request's budget for each value in a large schema that is compiled."""

MAX_READ_PARTS = 20_000
"""Maximum number of counted values; a schema of the largest size may have some more."""

QUICK_STEPS = 2_000
"""Maximum number of keywords evaluated on the event loop, in 10 ms at most; a usual check takes ten to a hundred."""

MAX_STEPS = 50_000
"""Maximum number of keywords evaluated in one check, under half a second: references can be exponentially many."""

MAX_SECONDS = 3.0
"""Time limit in seconds of processor time for one check in a worker process, for work that is not counted."""

QUICK_PARTS = 1_000
"""Maximum number of values in a schema that is compiled on the event loop, in 10 ms; larger ones use a thread."""

FEW_PARTS = 1000
"""Number of values in arguments up to which an expensive check is blamed on the schema."""

LARGE_PARTS = 100
LARGE_BYTES = 16 * 1024
"""Number of values in arguments, and bytes of a schema, from which error texts, which quote both, count as work."""

MAX_UNIQUE_ITEMS = 1000
MAX_COMPARED_ITEMS = 300
"""Maximum length of a list that is checked for unique items: if they can be sorted, or else with each other."""

_CLOSED = "Additional properties are not allowed"

_REGEX_KEYWORDS = (b'"pattern"', b'"patternProperties"')

_METER: ContextVar[_Meter] = ContextVar("pml_gateway_validation_meter")

_ABOUT_NAMES = frozenset({"required", "additionalProperties", "dependentRequired", "propertyNames"})
"""Keywords that refuse an object because of its names, whatever the values."""

MAX_READ = 2048
MAX_COMPILED = 64
_READ: dict[CatalogTool, _Schema | None] = {}
_COMPILED: dict[str, Any] = {}
"""Validators of the latest schemas by digest, here and in a worker process."""

_Evaluate = Callable[[Any, Any, Any, Any], Iterator[Any] | None]
"""A keyword of jsonschema: (validator, keyword's value, instance, schema) to errors."""

_SEARCHING = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
"""Keywords that may need a search through the whole schema: only pointers lead straight to their target."""

_COMPARING = frozenset({"enum", "const"})
_LOOKING_AT_ONE = frozenset(
    {"type", "format", "minLength", "maxLength", "minimum", "maximum", "multipleOf", "minItems", "maxItems"}
)
"""Keywords with constant cost, however large the value."""

_CONTAINERS = frozenset({dict, list})


@dataclass(frozen=True, slots=True)
class ValidArguments:
    """Valid arguments, and the changes to names and values that this took, by JSON pointer.

    `names` has the pointers of the parameters that were sent under another name, those of nested objects left out.
    """

    arguments: JsonObject
    coerced: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)


async def check_arguments(
    tool: CatalogTool, arguments: JsonObject, unfilled: Sequence[JsonObject] = ()
) -> ValidArguments:
    """Return the arguments in a form that the tool's original schema admits; see `coerced` for the possible changes.

    `unfilled` are the problems of placeholders that were found in them.

    Patterns are left to the upstream: Python's `re` can run for hours on a hostile one and cannot be interrupted.
    References outside the schema are never fetched; a schema that needs them is left to the upstream as well.

    Raises:
        InvalidInputError: with a JSON pointer per problem, and the tool's signature.
    """
    fitting, problems = await fitted(tool, arguments, unfilled)
    if not problems:
        return fitting
    raise refusal(problems, tool.qualified_name, signature(tool.qualified_name, tool.definition["inputSchema"]))


async def fitted(
    tool: CatalogTool, arguments: JsonObject, unfilled: Sequence[JsonObject] = ()
) -> tuple[ValidArguments, list[JsonObject]]:
    """Return the arguments, respelled and coerced if necessary, and the problems that remain, `unfilled` first."""
    given, names = respelled(tool.definition["inputSchema"], arguments, partial(_subject, tool))
    problems = await argument_problems(tool, given)
    changed, done = coerced(tool.definition["inputSchema"], given) if problems else (given, {})
    if done:
        problems = await argument_problems(tool, changed)
    found = _each_once(problems, undeclared(tool, changed))
    if found and names:
        sent = {_renamed(pointer, names): pointer for pointer in names}
        found = [{**each, "path": _under(each["path"], sent)} for each in found]
    own = {target: pointer for pointer, target in names.items() if not _parent(pointer)}
    return ValidArguments(changed, _as_sent(done, names), own), with_unfilled(found, unfilled)


def with_unfilled(problems: list[JsonObject], unfilled: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the problems of placeholders, and those of other values."""
    places = {each["path"] for each in unfilled}
    return [*unfilled, *(each for each in problems if each["path"] not in places)]


def _as_sent(done: dict[str, str], names: dict[str, str]) -> dict[str, str]:
    """Return the changes to values and names, by pointers into the original request."""
    told = {pointer: f"read as {target!r}" for pointer, target in names.items()}
    sent = {_renamed(pointer, names): pointer for pointer in names}
    for pointer, what in done.items():
        place = _under(pointer, sent)
        told[place] = f"{told[place]}, {what}" if place in told else what
    return told


def _renamed(pointer: str, names: dict[str, str]) -> str:
    """Return a pointer into the request, whose names were changed, as a pointer into the respelled arguments."""
    read = at = ""
    for part in pointer.split("/")[1:]:
        at = f"{at}/{part}"
        read = f"{read}/{escaped(names[at]) if at in names else part}"
    return read


def _under(pointer: str, sent: dict[str, str]) -> str:
    """Return a pointer into the respelled arguments as one into the request; `sent` has the changed names."""
    parts = pointer.split("/")
    for length in range(len(parts), 1, -1):
        if (head := "/".join(parts[:length])) in sent:
            return "/".join([sent[head], *parts[length:]])
    return pointer


def _each_once(problems: list[JsonObject], unnamed: list[JsonObject]) -> list[JsonObject]:
    """Return all problems, each unknown name once."""
    places = {_parent(each["path"]) for each in unnamed}
    return [
        each for each in problems if each["path"] not in places or not each["message"].startswith(_CLOSED)
    ] + unnamed


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _subject(tool: CatalogTool) -> ToolSubject:
    description = tool.definition.get("description")
    is_destructive = tool.effect is Effect.DESTRUCTIVE
    return subject_of(tool.name, str(description or ""), is_destructive=is_destructive)


def undeclared(tool: CatalogTool, arguments: JsonObject) -> list[JsonObject]:
    """Return a problem for each argument, nested ones too, that the tool does not declare, and would likely ignore."""
    schema, subject = tool.definition["inputSchema"], partial(_subject, tool)
    named = undeclared_in(schema, arguments, subject)
    if named and isinstance(tool.input_schema, dict) and tool.input_schema is not schema:
        # The repaired schema declares less than the original.
        original = {each.pointer for each in undeclared_in(tool.input_schema, arguments, subject)}
        named = [each for each in named if each.pointer in original]
    return [_undeclared(each) for each in named[:MAX_ERRORS]]


def _undeclared(found: Undeclared) -> JsonObject:
    shown = found.name[:MAX_NAME]
    place = f"{_parent(found.pointer)}/{escaped(shown)}"
    problem = {"path": place, "message": f"{shown!r} is none of its {'keys' if _parent(place) else 'parameters'}"}
    reading = found.reading
    if reading is None:
        return problem
    if reading.other_values:
        by_unit: dict[str, list[str]] = {}
        for name, unit in reading.other_values.items():
            by_unit.setdefault(_in_unit(unit), []).append(name)
        hint = "; ".join(
            f'{_and(names) if set(names) <= set(found.missing) else f"{_either(names)} is"} needed{unit}, not "{shown}"'
            for unit, names in by_unit.items()
        )
    elif reading.near:
        hint = f'write {_either(reading.near)} instead of "{shown}"'
    elif found.missing:
        hint = f'{_and(found.missing)} needed, not "{shown}"'
    elif found.takes:
        listed = " and ".join(f'"{each}"' for each in found.takes)
        hint = f'it takes {listed}, not "{shown}"'
    elif reading.must_stay:
        hint = f'say it by one of the declared parameters, not by "{shown}"'
    else:
        hint = f'leave out "{shown}"'
    return {**problem, "hint": hint, **({"closest": list(reading.near)} if reading.near else {})}


def _and(names: Sequence[str]) -> str:
    listed = " and ".join(f'"{each}"' for each in names[:MAX_ERRORS])
    return f"{listed} {'is' if len(names) == 1 else 'are'}"


def _either(names: Sequence[str]) -> str:
    return " or ".join(f'"{each}"' for each in names)


def _in_unit(unit: str) -> str:
    return f", in {unit}" if unit else ""


def refusal(problems: list[JsonObject], name: str, call: str) -> InvalidInputError:
    """Return the error for invalid arguments of a call with the signature `call`."""
    listed = "; ".join(f"{problem['path'] or '/'}: {problem['message']}" for problem in problems)
    hints = [problem["hint"] for problem in problems if "hint" in problem]
    return InvalidInputError(
        f"invalid arguments for {name}: {listed}",
        hint="; ".join([*hints, f"expected {call}"]),
        details={"errors": problems, "signature": call},
    )


def check_object(arguments: object) -> None:
    """Refuse arguments that a reference resolved to anything but an object.

    Raises:
        InvalidInputError: with the actual type.
    """
    if isinstance(arguments, dict):
        return
    kind = {str: "a text", list: "a list", bool: "a boolean", type(None): "null"}.get(type(arguments), "a number")
    raise InvalidInputError(
        f"the arguments are {kind} instead of an object",
        hint="put the reference in the place of one argument, or give it a path to an object",
    )


def open_problems(tool: CatalogTool, arguments: JsonObject, unknown: frozenset[str]) -> list[JsonObject]:
    """Return the problems of arguments that do not depend on the values at the `unknown` JSON pointers.

    Only as far as that is quick, as the call itself is checked in any case. Blocking: call it in a thread.
    """
    schema = tool.definition["inputSchema"]
    given, names = respelled(schema, arguments, partial(_subject, tool), unknown)
    if names:
        unknown = frozenset(_renamed(pointer, names) for pointer in unknown)
    problems = _open_problems(tool, given, unknown)
    if problems:
        changed, done = coerced(schema, given, unknown)
        problems = _open_problems(tool, changed, unknown) if done else problems
    return problems if "" in unknown else _each_once(problems, undeclared(tool, given))


def _open_problems(tool: CatalogTool, arguments: JsonObject, unknown: frozenset[str]) -> list[JsonObject]:
    schema = _read(tool)
    if schema is None or schema.validator is None:
        return []
    budget = current_budget()
    found = _counted_check(schema.validator, arguments, _allowed(budget, QUICK_STEPS), unknown)
    budget.spend(found.steps * STEPS_OF_BUDGET)
    return found.problems or []


async def argument_problems(tool: CatalogTool, arguments: JsonObject) -> list[JsonObject]:
    """Return the problems that the tool's original schema finds, with `path` (a JSON pointer) and `message`.

    Nearly every check is done at once. A longer one leaves the event loop: it runs in a thread if it is bounded, or
    else in a process that can be killed. If that reaches no verdict either, only required names and types are checked,
    and the rest is left to the upstream. See `check_arguments`.
    """
    problems = await _verdict(tool, arguments)
    if problems is not None:
        return problems
    return [] if tool in _READ and _read(tool) is None else _shallow_problems(tool, arguments)


async def _verdict(tool: CatalogTool, arguments: JsonObject) -> list[JsonObject] | None:
    """Return the problems that the tool's schema finds; None if there was no verdict."""
    budget = current_budget()
    if tool not in _READ and not await _is_read(tool, budget):
        return None
    schema = _read(tool)
    if schema is None:
        return None
    found = _NO_VERDICT
    if schema.digest not in budget.exceeded:
        if schema.validator is not None:
            found = _counted_check(schema.validator, arguments, _allowed(budget, QUICK_STEPS))
            budget.spend(found.steps * STEPS_OF_BUDGET)
        if found.problems is None:
            async with budget.turn:
                found = await _check_beside(schema, arguments, budget)
    return found.problems


async def _check_beside(schema: _Schema, arguments: JsonObject, budget: RequestBudget) -> _CheckResult:
    if budget.steps <= 0 or schema.digest in budget.exceeded:
        # Other calls of this request have used the budget meanwhile.
        return _NO_VERDICT
    parts = parts_of(arguments, MAX_STEPS)
    allowed = _allowed(budget, MAX_STEPS)
    limit = None
    try:
        if budget.workers is None or schema.cost.most_steps(parts) <= MAX_STEPS:
            found = await budget.in_thread(_check_in_thread, schema, arguments, allowed)
        else:
            answer = await budget.workers.in_process(
                check_in_process,
                schema.digest,
                schema.schema,
                arguments,
                allowed,
                seconds=MAX_SECONDS,
                quota_key=budget.quota_key,
            )
            found = _CheckResult(*answer)
    except WorkerLimitError as error:
        found, limit = _CheckResult(None, allowed), error.limit
    budget.spend(found.steps * STEPS_OF_BUDGET)
    is_the_schema = parts <= FEW_PARTS and found.steps >= MAX_STEPS and limit is not Limit.MACHINE
    if found.problems is None and is_the_schema:
        budget.exceeded.setdefault(schema.digest, limit or f"{MAX_STEPS} steps")
    return found


def _shallow_problems(tool: CatalogTool, arguments: JsonObject) -> list[JsonObject]:
    """Return the problems that show without following references."""
    schema = tool.definition["inputSchema"]
    missing = [{"path": "", "message": f"{name!r} is a required property"} for name in missing_names(schema, arguments)]
    wrong = wrong_types(schema, arguments).items()
    found = missing + [{"path": f"/{escaped(name)}", "message": message} for name, message in wrong]
    return [{**problem, "message": problem["message"][:MAX_MESSAGE]} for problem in found[:MAX_ERRORS]]


def schema_digests(tool: CatalogTool) -> frozenset[str]:
    """Return the digests that identify the schema for the tool's arguments."""
    schemas = (tool.input_schema, tool.definition["inputSchema"])
    return frozenset(hashlib.sha256(encode(schema)).hexdigest() for schema in schemas)


class _TooManyStepsError(Exception):
    """A check took more steps than an honest schema needs."""


@dataclass(slots=True)
class _Meter:
    """The remaining steps of one check."""

    left: int
    weighs_messages: bool

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise _TooManyStepsError


@dataclass(frozen=True, slots=True)
class _CheckResult:
    """Result of a check: its problems, or None without a verdict, and its steps."""

    problems: list[JsonObject] | None
    steps: int


_NO_VERDICT = _CheckResult(None, 0)


def _allowed(budget: RequestBudget, steps: int) -> int:
    return max(0, min(steps, budget.steps // STEPS_OF_BUDGET))


def _is_certain(error: Any, unknown: frozenset[str]) -> bool:
    at = _pointer(error)
    if any(at == pointer or at.startswith(f"{pointer}/") for pointer in unknown):
        return False
    # An unknown value further down may be the reason why a combination of schemas fails.
    return error.validator in _ABOUT_NAMES or not any(pointer.startswith(f"{at}/") for pointer in unknown)


def _counted_check(
    validator: Any, arguments: JsonObject, steps: int, unknown: frozenset[str] = frozenset()
) -> _CheckResult:
    """Check arguments, unless it takes more than `steps`."""
    if validator is None:
        return _CheckResult([], 0)
    meter = _Meter(steps, parts_of(arguments, LARGE_PARTS) > LARGE_PARTS)
    token = _METER.set(meter)
    try:
        found = validator.iter_errors(arguments)
        if unknown:
            found = (error for error in found if _is_certain(error, unknown))
        errors = list(islice(found, MAX_ERRORS))
    except _TooManyStepsError:
        return _CheckResult(None, steps)
    except BaseException as error:
        if not isinstance(error, _stumbles()) and not _is_panic(error):
            raise
        return _CheckResult([], steps - meter.left)
    finally:
        _METER.reset(token)
    if not errors:
        return _CheckResult([], steps - meter.left)
    problems: list[JsonObject] = [
        {"path": _pointer(error), "message": _message(error)}
        for error in sorted(errors, key=lambda error: [str(part) for part in error.absolute_path])
    ]
    return _CheckResult(problems, steps - meter.left)


def _message(error: Any) -> str:
    """Return the message of an error, shortened within the quoted value, behind which the reason stands."""
    message: str = error.message
    if len(message) > MAX_MESSAGE and message.startswith(quoted := repr(error.instance)):
        message = f"{quoted[: MAX_MESSAGE // 2]}…{message[len(quoted) :]}"
    return message[:MAX_MESSAGE]


@cache
def _stumbles() -> tuple[type[Exception], ...]:
    """Return the exceptions of a validator whose references lead to something that is no schema."""
    from referencing.exceptions import Unresolvable

    return (Unresolvable, RecursionError, ArithmeticError, TypeError, ValueError, AttributeError)


def _is_panic(error: BaseException) -> bool:
    """Return True for a panic of a Rust library, as in `referencing` on stack overflow; it is no `Exception`."""
    return type(error).__name__ == "PanicException"


def _check_in_thread(schema: _Schema, arguments: JsonObject, steps: int) -> _CheckResult:
    return _counted_check(schema.validator or _compiled(schema.schema), arguments, steps)


def check_in_process(
    digest: str, schema: JsonObject, arguments: JsonObject, steps: int
) -> tuple[list[JsonObject] | None, int]:
    """Check arguments in a worker process, which caches the validator; return problems (or None) and steps."""
    found = _counted_check(_compiled_once(digest, schema), arguments, steps)
    return found.problems, found.steps


def _pointer(error: Any) -> str:
    return "".join(f"/{escaped(str(part))}" for part in error.absolute_path)


@dataclass(frozen=True, slots=True)
class _Schema:
    """A compiled schema for arguments; without a validator if expanding its references is too expensive."""

    schema: JsonObject
    digest: str
    cost: SchemaCost
    validator: Any


async def _is_read(tool: CatalogTool, budget: RequestBudget) -> bool:
    """Compile the tool's schema, off the event loop if it is large; return False if the budget is used up."""
    parts = parts_of(tool.input_schema, MAX_READ_PARTS)
    if parts <= QUICK_PARTS:
        _read(tool)
        return True
    async with budget.turn:
        if tool not in _READ and budget.steps > 0:
            budget.spend(parts * STEPS_TO_READ)
            await budget.in_thread(_read, tool)
    return tool in _READ


def _read(tool: CatalogTool) -> _Schema | None:
    """Return the compiled original schema, the repaired one if that is invalid, or None; cached. May take long."""
    if tool not in _READ:
        keep_latest(_READ, tool, _first_sound(tool), MAX_READ)
    return _READ[tool]


def _first_sound(tool: CatalogTool) -> _Schema | None:
    for schema in (tool.input_schema, tool.definition["inputSchema"]):
        text = encode(schema)
        if not isinstance(schema, dict) or len(text) > MAX_BYTES:
            continue
        digest, cost = hashlib.sha256(text).hexdigest(), cost_of(schema)
        if cost.expanded > MAX_STEPS:
            return _Schema(schema, digest, cost, None)
        validator = _compiled_once(digest, schema)
        if validator is not None:
            return _Schema(schema, digest, cost, validator)
    return None


def _compiled_once(digest: str, schema: JsonObject) -> Any:
    """Return the validator of a schema, cached by digest: several gateways have equal schemas of different tools."""
    validator = _COMPILED.get(digest)
    if validator is None:
        validator = _compiled(schema)
        keep_latest(_COMPILED, digest, validator, MAX_COMPILED)
    return validator


def _compiled(schema: JsonObject) -> Any:
    # Imported on the first check: jsonschema takes 0.1 s, which a gateway that only lists never needs.
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import extend, validator_for
    from referencing import Registry

    try:
        text = encode(schema)
        kind = validator_for(schema, default=Draft202012Validator)
        kind.check_schema(schema, format_checker=None)
        keywords = _bounded(dict(kind.VALIDATORS))
        if any(keyword in text for keyword in _REGEX_KEYWORDS):
            keywords = _without_patterns(keywords)
        size, is_large = parts_of(schema, MAX_STEPS), len(text) > LARGE_BYTES
        counted = {keyword: _counted(keyword, evaluate, size, is_large) for keyword, evaluate in keywords.items()}
        return extend(kind, validators=counted)(_in_one_dialect(schema), registry=Registry())
    except BaseException as error:
        if isinstance(error, SchemaError | RecursionError | TypeError | ValueError | AttributeError | KeyError):
            return None
        if _is_panic(error):
            return None
        raise


def _in_one_dialect(value: Any) -> Any:
    """Return `value` without `$schema`, which would switch the validator to keywords other than ours."""
    if isinstance(value, list):
        return [_in_one_dialect(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {key: _in_one_dialect(item) for key, item in value.items() if not _names_dialect(key, item)}
    # A choice that is itself a schema with a dialect would no longer be the same value.
    return {key: item for key, item in kept.items() if key not in ("const", "enum") or item == value[key]}


def _names_dialect(key: str, value: object) -> bool:
    return key == "$schema" and isinstance(value, str)


def _without_patterns(keywords: dict[str, _Evaluate]) -> dict[str, _Evaluate]:
    """Return the keywords without regular expressions; those that would then refuse more accept everything instead."""
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
        if isinstance(instance, list):
            can_be_sorted = len({type(item) for item in instance}) == 1 and isinstance(instance[0], str | int | float)
            if len(instance) > (MAX_UNIQUE_ITEMS if can_be_sorted else MAX_COMPARED_ITEMS):
                return None
            _METER.get().spend(0 if can_be_sorted else len(instance) ** 2 // 8)
        return evaluate(validator, value, instance, schema)

    return check


def _counted(keyword: str, evaluate: _Evaluate, schema_size: int, is_large: bool) -> _Evaluate:
    """Return the keyword with a count of its approximate work."""
    searches, compares, branches = keyword in _SEARCHING, keyword in _COMPARING, keyword in ("anyOf", "oneOf")
    looks_at_one = keyword in _LOOKING_AT_ONE

    def steps_of(meter: _Meter, value: Any, instance: Any) -> int:
        steps = len(value) // 8 if type(value) in _CONTAINERS else 0
        if type(instance) in _CONTAINERS:
            steps += (parts_of(value, MAX_STEPS) if compares else len(instance)) // 8
        if branches and meter.weighs_messages and isinstance(value, list):
            # Refusals by `false`, which quote the whole value as well, involve no other keyword.
            steps += value.count(False) * parts_of(instance, MAX_STEPS)
        if searches and not (isinstance(value, str) and (value == "#" or value.startswith("#/"))):
            steps += schema_size // 8
        return steps

    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any] | None:
        meter = _METER.get()
        meter.left -= 1 if looks_at_one else 1 + steps_of(meter, value, instance)
        if meter.left < 0:
            raise _TooManyStepsError
        errors = evaluate(validator, value, instance, schema)
        if errors is None or not (is_large or meter.weighs_messages):
            return errors
        return _weighed(errors, meter)

    return check


def _weighed(errors: Iterator[Any], meter: _Meter) -> Iterator[Any]:
    for error in errors:
        # The message quotes the value, and a combination of schemas keeps the errors of each of them.
        meter.spend(len(error.message) // 64)
        yield error
