"""The JSON of a batch becomes a plan of independent calls."""

from __future__ import annotations

from pml_gateway.errors import ErrorCode, InvalidInputError
from pml_gateway.types import JsonObject
from pml_gateway.workflow.fields import arguments_of, budget_of, check_size, etag_of, list_of, renamed, unknown_keys
from pml_gateway.workflow.outcome import error_json
from pml_gateway.workflow.plan import Budget, Plan, PlanError, Step, StepProblem
from pml_gateway.workflow.templates import Literal, Template, compile_template

CALL_KEYS = ("name", "arguments", "id", "if_none_match")
CALL_ALIASES = {"tool": "name", "args": "arguments", "operation": "name", "input": "arguments"}
"""Other words for the keys of a call; models know them from other systems."""

MAX_SLOT_ID = 128


def parse_batch(request: JsonObject, limits: Budget) -> tuple[Plan, dict[int, JsonObject]]:
    """The plan of a `call_batch` request, and the errors of the calls in it that cannot be read, by position.

    The calls are independent; their arguments may hold stored results.

    Raises:
        PlanError: what is wrong with the request itself, such as more calls than the size cap allows.
    """
    problems = unknown_keys(request, ("calls", "max_parallel"), "", "")
    budget = budget_of({"max_parallel": request.get("max_parallel")}, limits, problems)
    calls = list_of(request.get("calls"), "calls", '[{"name": "server__tool", "arguments": {}}]', subject="the batch")
    check_size(len(calls), limits, "calls", subject="the batch")
    steps: list[Step] = []
    refused: dict[int, JsonObject] = {}
    taken: set[str] = set()
    for index, call in enumerate(calls):
        pointer, slot = f"/calls/{index}", str(index)
        fields = renamed(call, CALL_ALIASES) if isinstance(call, dict) else {}
        given_id = fields.get("id")
        if given_id is not None:
            slot = str(given_id)
        if isinstance(given_id, bool | dict | list | float) or not slot or len(slot) > MAX_SLOT_ID or slot in taken:
            problems.append(StepProblem(slot[:MAX_SLOT_ID], f"{pointer}/id", "ids are different texts or numbers"))
            continue
        taken.add(slot)
        step, faults = _slot(index, slot, fields, pointer)
        steps.append(step)
        if faults:
            refused[index] = _error(faults)
    if problems:
        raise PlanError(problems, subject="the batch")
    return Plan(tuple(steps), budget, shares_reads=False), refused


def _slot(index: int, slot: str, fields: JsonObject, pointer: str) -> tuple[Step, list[StepProblem]]:
    name = fields.get("name")
    if not isinstance(name, str) or not name:
        message = "a call is an object with the name of a tool"
        hint = 'for example {"name": "server__tool", "arguments": {}}'
        return Step(index, slot), [StepProblem(slot, pointer, message, hint)]
    problems = unknown_keys(fields, CALL_KEYS, slot, pointer)
    arguments = arguments_of(fields.get("arguments"), slot, f"{pointer}/arguments", problems)
    template = _template(arguments, slot, f"{pointer}/arguments", problems)
    etag = etag_of(fields, slot, pointer, problems)
    return Step(index, slot, tool=name, given=arguments, arguments=template, if_none_match=etag), problems


def _error(problems: list[StepProblem]) -> JsonObject:
    """The error of a slot whose call was not made."""
    message = "; ".join(f"{problem.path}: {problem.message}" for problem in problems)
    errors = [problem.as_json() for problem in problems]
    return error_json(ErrorCode.INVALID_INPUT, message, hint=problems[0].hint, errors=errors)


def _template(arguments: JsonObject, slot: str, pointer: str, problems: list[StepProblem]) -> Template:
    try:
        return compile_template(arguments, reads_steps=False)
    except InvalidInputError as error:
        problems.append(StepProblem(slot, pointer, error.message, error.hint))
        return Literal({})
