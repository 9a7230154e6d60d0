"""Workflows and batches as JSON, parsed into a plan or into a list of their problems."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from pml_gateway.catalog.pointers import escaped
from pml_gateway.errors import ErrorCode, InvalidInputError, error_json
from pml_gateway.exposure.unfilled import filled, kinds_of
from pml_gateway.exposure.vocabulary import (
    SchemaReading,
    UnreadableKeysError,
    from_text,
    meaning,
    object_in,
    read,
    read_call,
)
from pml_gateway.text import nearest
from pml_gateway.types import JsonObject
from pml_gateway.workflow.expressions import Expression, with_dollars
from pml_gateway.workflow.fields import (
    arguments_of,
    budget_of,
    check_size,
    condition,
    etag_of,
    key_problems,
    list_of,
    number_in,
)
from pml_gateway.workflow.placeholders import by_place, of_all_steps, placeholders, spelled
from pml_gateway.workflow.plan import (
    INDEX,
    INPUT,
    ITEM,
    RESERVED_IDS,
    Budget,
    OnError,
    Plan,
    PlanError,
    Step,
    StepProblem,
    tightened,
    topological_cycle,
)
from pml_gateway.workflow.templates import (
    LiteralTemplate,
    StepReference,
    Template,
    compile_template,
    needed_roots,
    roots_of,
)

REQUEST_KEYS = ("steps", "intent", "on_error", "budget", "dry_run", "return", "trace", "max_parallel")
STEP_KEYS = (
    "id",
    "tool",
    "arguments",
    "depends_on",
    "when",
    "for_each",
    "transform",
    "input",
    "timeout",
    "max_tokens",
    "max_parallel",
    "if_none_match",
)
CALL_STEP_KEYS = tuple(key for key in (*STEP_KEYS, "server") if key not in ("transform", "input"))
"""Keys of a step that calls a tool; in it, `input` is a synonym of `arguments`."""

TRANSFORM_KEYS = tuple(key for key in STEP_KEYS if key not in ("arguments", "if_none_match", "timeout"))

_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}\Z")
CALL_KEYS = ("name", "arguments", "id", "if_none_match", "server")
MAX_SLOT_ID = 128
NO_DETAILS: JsonObject = {}


class ToolResolver(Protocol):
    """The tools of one client, by the names that its calls use."""

    def parameters(self, name: Any, call: JsonObject) -> Mapping[str, Any] | None:
        """Return the schemas of a tool's parameters by name, or None if the tool is not known."""

    def tool_call(
        self, name: str, arguments: JsonObject, server: Any = None
    ) -> tuple[str, JsonObject, tuple[str, ...]]:
        """Return the name of the called tool, its arguments, and pointers to the keys in them that clients add."""


class UnresolvedTools:
    """Callees that resolve nothing, for steps in the configuration, which name their tools in full."""

    def parameters(self, name: Any, call: JsonObject) -> None:
        """Return None: no tool is known."""

    def tool_call(
        self, name: str, arguments: JsonObject, server: Any = None
    ) -> tuple[str, JsonObject, tuple[str, ...]]:
        """Return the call unchanged, with its server in front of the tool's name."""
        return (name if server is None else f"{server}:{name}"), arguments, ()


NO_CALLEES = UnresolvedTools()


def parse_workflow(
    request: JsonObject,
    limits: Budget,
    *,
    callees: ToolResolver = NO_CALLEES,
    with_input: bool = False,
    extra_keys: tuple[str, ...] = (),
) -> tuple[Plan, list[StepProblem]]:
    """Parse an `execute_workflow` request or a composite tool into a plan, and return it with every problem found.

    The plan can only be run if there is no problem. `callees` resolve the tools that steps name; `with_input` allows
    `$input`; `extra_keys` are keys of steps that only the configuration may use.

    Raises:
        PlanError: the request has no list of steps, or more than its budget allows.
    """
    problems: list[StepProblem] = []
    request = _read_request(request, problems)
    budget = budget_of(request, limits, problems)
    try:
        raw_steps = list_of(request.get("steps"), "steps", '[{"id": "a", "tool": "server__tool", "arguments": {}}]')
        check_size(len(raw_steps), budget, "steps")
    except PlanError as error:
        # An exceeded limit is reported first; a mistyped key is reported before the missing steps that it caused.
        first = error.code is ErrorCode.BUDGET_EXCEEDED
        raise PlanError([*error.problems, *problems] if first else [*problems, *error.problems]) from None
    reader = _Steps(raw_steps, callees, with_input=with_input, extra_keys=extra_keys)
    steps = reader.read()
    problems += reader.problems
    on_error = request.get("on_error", OnError.CONTINUE.value)
    if on_error not in list(OnError):
        problems.append(
            StepProblem("", "/on_error", f"on_error {on_error!r} is unknown", f"choose from {', '.join(OnError)}")
        )
        on_error = OnError.CONTINUE
    returned = _returned(from_text(request.get("return", "all")), steps, problems)
    trace = request.get("trace") in (True, "true")
    return Plan(steps, budget, OnError(on_error), returned, trace=trace, ignored=tuple(reader.ignored)), problems


def _read_request(request: JsonObject, problems: list[StepProblem]) -> JsonObject:
    try:
        return read(request, REQUEST_KEYS).fields
    except UnreadableKeysError as error:
        problems += key_problems(error, "", "")
        return {key: value for key, value in request.items() if key in REQUEST_KEYS}


class _Steps:
    """A reader for the steps of one request that collects their problems."""

    def __init__(
        self, raw_steps: list[Any], callees: ToolResolver, *, with_input: bool, extra_keys: tuple[str, ...]
    ) -> None:
        self.problems: list[StepProblem] = []
        self.ignored: list[str] = []
        self._raw = raw_steps
        self._callees = callees
        self._with_input = with_input
        self._extra_keys = extra_keys
        self._positions: dict[str, int] = {str(index): index for index in range(len(raw_steps))}
        self._ids: list[str] = []
        self._referred: list[frozenset[int]] = []

    def read(self) -> tuple[Step, ...]:
        """Return all steps with their dependencies; a step that cannot be read is empty."""
        fields = [self._fields(index, raw) for index, raw in enumerate(self._raw)]
        self._ids = [self._id(index, step) for index, step in enumerate(fields)]
        steps = [self._step(index, step) for index, step in enumerate(fields)]
        cycle = topological_cycle([step.after for step in steps])
        if cycle:
            names = " -> ".join(self._ids[index] for index in (*cycle, cycle[0]))
            pointer = f"/steps/{cycle[0]}"
            message = f"the steps {names} wait for each other"
            self.problems.append(StepProblem(self._ids[cycle[0]], pointer, message, "remove one of these references"))
            return tuple(replace(step, after=frozenset(), reads=frozenset()) for step in steps)
        for step in steps:
            for later in sorted(each for each in self._referred[step.index] if each > step.index):
                message = f"refers to the step {self._ids[later]!r}, which comes after it"
                hint = f"put {self._ids[later]!r} before {step.id!r}"
                self.problems.append(StepProblem(step.id, f"/steps/{step.index}", message, hint))
        return tuple(steps)

    def _fields(self, index: int, raw: Any) -> JsonObject:
        """Return the fields of a step under their declared keys, with its call resolved to a tool."""
        if not isinstance(raw, dict):
            return {}
        # Some clients send every key, with null for those without a value.
        raw = {key: value for key, value in raw.items() if value is not None or meaning(key, STEP_KEYS) is None}
        reshapes = any(meaning(key, ("transform",)) is not None for key in raw)
        calls = any(meaning(key, ("tool",)) is not None for key in raw)
        pointer = f"/steps/{index}"
        try:
            if calls and not reshapes:
                reading = read_call(raw, (*CALL_STEP_KEYS, *self._extra_keys), "tool", self._callees.parameters)
            else:
                keys = TRANSFORM_KEYS if reshapes and not calls else STEP_KEYS
                reading = read(raw, (*keys, *self._extra_keys))
            fields, ignored = _called(reading, "tool", self._callees)
        except UnreadableKeysError as error:
            step_id = raw.get("id")
            self.problems += key_problems(error, step_id if isinstance(step_id, str) else str(index), pointer)
            meant = ((meaning(key, STEP_KEYS), value) for key, value in raw.items())
            return {key: value for key, value in meant if key is not None and value is not None}
        except InvalidInputError as error:
            self._note(str(raw.get("id", index))[:64], f"{pointer}/arguments", error.message, error.hint)
            return reading.fields
        self.ignored += [f"{pointer}{each}" for each in ignored]
        return fields

    def _id(self, index: int, fields: JsonObject) -> str:
        given = fields.get("id")
        if given is None or given == index:
            return str(index)
        if not isinstance(given, str) or not _ID.match(given) or given in RESERVED_IDS:
            message = f"the id {str(given)[:64]!r} cannot be used"
            hint = f"letters, digits, _ and -, beginning with a letter, and none of {', '.join(sorted(RESERVED_IDS))}"
            self._note(str(index), f"/steps/{index}/id", message, hint)
            return str(index)
        if given in self._positions:
            self._note(given, f"/steps/{index}/id", f"two steps have the id {given!r}", "ids are different")
            return str(index)
        self._positions[given] = index
        return given

    def _step(self, index: int, fields: JsonObject) -> Step:
        step_id, pointer = self._ids[index], f"/steps/{index}"
        if not isinstance(self._raw[index], dict):
            self._referred.append(frozenset())
            self._note(step_id, pointer, "a step is an object", 'for example {"tool": "server__tool"}')
            return Step(index, step_id)
        loops = {ITEM, INDEX} if "for_each" in fields else set()
        # With an input of its own, a transform's names are fields of that.
        names = self._names.union(loops) if "input" not in fields else frozenset()
        tool, transform = fields.get("tool"), self._expression(fields, "transform", step_id, pointer, names)
        if (isinstance(tool, str) and bool(tool)) == ("transform" in fields):
            self._note(step_id, pointer, "a step has either a tool or a transform", '"tool" names what to call')
            tool = None
        given = arguments_of(fields.get("arguments"), step_id, f"{pointer}/arguments", self.problems)
        parameters = self._callees.parameters(tool, {})
        given, unfilled = filled(parameters, given, str(tool), self._names)
        arguments = self._template(given, step_id, f"{pointer}/arguments", loops, numbers=_numbers(parameters))
        source = self._template(fields["input"], step_id, f"{pointer}/input", loops) if "input" in fields else None
        for_each = self._for_each(fields, step_id, pointer)
        when = self._expression(fields, "when", step_id, pointer, self._names)
        roots = roots_of(arguments) | roots_of(source) | (transform.roots if transform else frozenset())
        over = roots_of(for_each)
        reads = self._steps_named(sorted(roots | over), step_id, pointer, inside_loop=for_each is not None)
        needed = needed_roots(arguments) | needed_roots(source) | needed_roots(for_each)
        if {ITEM, INDEX} & over:
            self._note(step_id, f"{pointer}/for_each", "for_each cannot read its own $item", "name a list")
        asked = self._steps_named(sorted(when.roots) if when else (), step_id, f"{pointer}/when", inside_loop=False)
        self._referred.append(reads | asked)
        named = self._depends_on(fields.get("depends_on"), step_id, f"{pointer}/depends_on")
        if transform is not None and not transform.roots and source is None and not named:
            hint = spelled(transform.text, list(of_all_steps(transform.text, self._names)), is_expression=True)
            hint = hint or "write $<step>, as in $0.items[*].id"
            self._note(step_id, f"{pointer}/transform", "the transform reads no step", hint)
        elif transform is not None and source is None:
            self._check_fields(transform, "transform", step_id, pointer, reads | asked | named)
        if when is not None:
            self._check_fields(when, "when", step_id, pointer, reads | asked | named)
        return Step(
            index=index,
            id=step_id,
            tool=tool if isinstance(tool, str) else None,
            transform=transform,
            arguments=arguments,
            given=given,
            unfilled=tuple(unfilled),
            input=source,
            when=when,
            for_each=for_each,
            timeout=self._number(fields, "timeout", step_id, pointer, whole=False),
            max_tokens=_integer(self._number(fields, "max_tokens", step_id, pointer, whole=True)),
            max_parallel=_integer(self._number(fields, "max_parallel", step_id, pointer, whole=True)),
            if_none_match=etag_of(fields, step_id, pointer, self.problems),
            hidden=bool(fields.get("hidden")),
            after=reads | asked | named,
            # A transform or a condition may read null; arguments are never built from missing results.
            reads=frozenset() if transform is not None else self._known(needed),
        )

    def _for_each(self, fields: JsonObject, step_id: str, pointer: str) -> Template | None:
        if "for_each" not in fields:
            return None
        value = fields["for_each"]
        template = self._template(value, step_id, f"{pointer}/for_each", is_reference=isinstance(value, str))
        if not isinstance(value, list) and not isinstance(template, StepReference):
            hint = (
                'for example "for_each": "$0.items", then "$item.id" in the arguments; '
                "put an expression over several steps into a transform step of its own"
            )
            self._note(step_id, f"{pointer}/for_each", "for_each takes a list or a reference to one", hint)
        return template

    def _template(
        self,
        value: Any,
        step_id: str,
        pointer: str,
        loops: Iterable[str] = (),
        *,
        is_reference: bool = False,
        numbers: frozenset[str] = frozenset(),
    ) -> Template:
        """Return the template of a value; `is_reference` if it cannot be a text, so that it needs no `$`."""
        try:
            value = with_dollars(value, self._names) if is_reference else value
            earlier = self._ids[: self._positions[step_id]]
            return compile_template(value, names=self._names.union(loops), numbers=numbers, earlier=earlier)
        except InvalidInputError as error:
            self._note(step_id, pointer + str(error.details.get("pointer", "")), error.message, error.hint)
            return LiteralTemplate({})

    def _expression(
        self, fields: JsonObject, key: str, step_id: str, pointer: str, names: frozenset[str]
    ) -> Expression | None:
        """Return the expression of a key, with `$` before the names of steps that were written without."""
        if key not in fields:
            return None
        text = fields[key]
        if key == "when" and isinstance(text, bool):
            text = f"`{str(text).lower()}`"
        if key == "when" and isinstance(text, dict):
            text = condition(text)
        if not isinstance(text, str) or not text.strip():
            self._note(
                step_id, f"{pointer}/{key}", f"{key} is a JMESPath expression", "such as $0.items[?state=='open']"
            )
            return None
        if re.match(r"\s*=(?!=)", text):
            # Spreadsheets begin formulas so, and no expression begins with it.
            text = text.replace("=", "", 1)
        try:
            expression = Expression(with_dollars(text, names))
        except InvalidInputError as error:
            found = list(placeholders(text, self._names)) or list(of_all_steps(text, self._names))
            self._note(
                step_id, f"{pointer}/{key}", error.message, spelled(text, found, is_expression=True) or error.hint
            )
            return None
        unknown = sorted(expression.roots - self._names - {INPUT, ITEM, INDEX})
        if unknown and (found := list(of_all_steps(text, self._names))):
            self._note(
                step_id,
                f"{pointer}/{key}",
                f"there is no step {unknown[0][:64]!r}",
                spelled(text, found, is_expression=True),
            )
            return None
        return expression

    def _check_fields(
        self, expression: Expression, key: str, step_id: str, pointer: str, before: frozenset[int]
    ) -> None:
        """Note fields that can only be null: in JMESPath, `"open"` and `true` are names, not a string and a boolean."""
        known = {self._ids[index] for index in before}
        foreign = spelled(expression.text, list(of_all_steps(expression.text, self._names)), is_expression=True)
        for name in sorted(expression.fields - known):
            hint = foreign or f"a text is written '{name[:64]}', as in $id.state == 'open'"
            if name in self._positions:
                hint = f"the step is written ${name}"
            self._note(step_id, f"{pointer}/{key}", f"{key} reads {name[:64]!r}, which is no step before it", hint)

    def _depends_on(self, value: Any, step_id: str, pointer: str) -> frozenset[int]:
        value = from_text(value)
        names = [value] if isinstance(value, str | int) else value if isinstance(value, list) else []
        if value is not None and not names and value != []:
            self._note(step_id, pointer, "depends_on is a list of steps", 'for example ["0", "fetch"]')
        return self._steps_named(
            [str(name).removeprefix("$") for name in names], step_id, pointer, inside_loop=False, only_steps=True
        )

    def _steps_named(
        self, roots: Iterable[str], step_id: str, pointer: str, *, inside_loop: bool, only_steps: bool = False
    ) -> frozenset[int]:
        positions = set()
        for root in dict.fromkeys(roots):
            known = self._positions.get(root)
            if known is not None:
                positions.add(known)
            elif only_steps or not self._is_other_root(root, inside_loop):
                self._note(step_id, pointer, f"there is no step {root[:64]!r}", self._hint(root, step_id))
        return frozenset(positions)

    def _known(self, roots: Iterable[str]) -> frozenset[int]:
        return frozenset(self._positions[root] for root in roots if root in self._positions)

    @property
    def _names(self) -> frozenset[str]:
        """Return the roots that every template may use."""
        return frozenset(self._positions) | ({INPUT} if self._with_input else set())

    def _is_other_root(self, root: str, inside_loop: bool) -> bool:
        return (root == INPUT and self._with_input) or (root in (ITEM, INDEX) and inside_loop)

    def _hint(self, root: str, step_id: str) -> str:
        if root in (ITEM, INDEX):
            return f"${root} exists in the arguments of a step with for_each"
        if root in ("steps", "step", "nodes", "node", "outputs", "results"):
            first = self._ids[0]
            return f'write "${first}" instead of "${root}.{first}"; the steps are {", ".join(self._ids[:12])}'
        steps = ", ".join(self._ids[:12]) or "none"
        near = by_place(root, self._ids[: self._positions.get(step_id, 0)]) or nearest(root, self._positions)
        meant = f'write "${near[0]}" instead of "${root[:64]}";' if near else ""
        return f"{meant} the steps are {steps}; $$ is a dollar sign that is no reference".lstrip()

    def _number(self, fields: JsonObject, key: str, step_id: str, pointer: str, *, whole: bool) -> float | None:
        value = fields.get(key)
        if value is None:
            return None
        number = tightened(float("inf"), number_in(value), whole=whole)
        if number is None:
            hint = "for example 5, or leave it out for the configured limit"
            self._note(step_id, f"{pointer}/{key}", f"{key} {str(value)[:40]!r} is no positive number", hint)
        return number

    def _note(self, step_id: str, path: str, message: str, hint: str = "") -> None:
        self.problems.append(StepProblem(step_id, path, message, hint))


def _numbers(parameters: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the parameters that take numbers only."""
    kinds = ((name, kinds_of(schema)) for name, schema in (parameters or {}).items() if isinstance(schema, dict))
    return frozenset(name for name, kind in kinds if kind and kind <= {"integer", "number", "null"})


def _integer(value: float | None) -> int | None:
    return None if value is None else int(value)


def _returned(value: Any, steps: tuple[Step, ...], problems: list[StepProblem]) -> frozenset[int] | None:
    """Return the positions of the steps whose results go into the answer; None means all of them."""
    if value == "all":
        return None
    if value == "final":
        needed = frozenset().union(*(step.after for step in steps))
        return frozenset(step.index for step in steps if step.index not in needed)
    positions = {str(step.index): step.index for step in steps} | {step.id: step.index for step in steps}
    chosen = [str(each).removeprefix("$") for each in (value if isinstance(value, list) else [value])]
    unknown = [each for each in chosen if each not in positions]
    if unknown:
        hint = f"all, final or steps: {', '.join(step.id for step in steps[:12])}"
        problems.append(StepProblem("", "/return", f"return names no step {unknown[0][:64]!r}", hint))
    return frozenset(positions[each] for each in chosen if each in positions)


def _called(reading: SchemaReading, name_key: str, callees: ToolResolver) -> tuple[JsonObject, list[str]]:
    """Return the fields of a call of a tool, and pointers to ignored keys.

    The call may also name an action of a namespace, or its server in a key of its own.

    Raises:
        InvalidInputError: the namespace has no such action, or takes no such arguments.
    """
    fields, ignored = reading.fields, [f"/{escaped(key)}" for key in reading.ignored]
    name = fields.get(name_key)
    arguments = object_in(fields.get("arguments", {}))
    if not isinstance(name, str) or arguments is None:
        return fields, ignored
    named, given, more = callees.tool_call(name, arguments, fields.get("server"))
    if (named, given) == (name, arguments):
        return fields, ignored
    others = {key: value for key, value in fields.items() if key != "server"}
    return {**others, name_key: named, "arguments": given}, [*ignored, *(f"/arguments{each}" for each in more)]


def parse_batch(
    request: JsonObject, limits: Budget, callees: ToolResolver = NO_CALLEES
) -> tuple[Plan, dict[int, JsonObject]]:
    """Parse a `call_batch` request into a plan, and return it with the errors of unreadable calls by position.

    The calls are independent; their arguments may contain references to stored results.

    Raises:
        PlanError: the request itself is wrong, for example it has more calls than its limit allows.
    """
    problems: list[StepProblem] = []
    budget = budget_of({"max_parallel": request.get("max_parallel")}, limits, problems)
    calls = list_of(request.get("calls"), "calls", '[{"name": "server__tool", "arguments": {}}]', subject="the batch")
    check_size(len(calls), limits, "calls", subject="the batch")
    if problems:
        raise PlanError([replace(each, path="/max_parallel") for each in problems], subject="the batch")
    slots = _Slots(callees, _slot_names(calls))
    named = {str(call["id"]) for call in calls if isinstance(call, dict) and call.get("id") is not None}
    steps = tuple(slots.read(index, call, named) for index, call in enumerate(calls))
    return Plan(steps, budget, shares_reads=False, ignored=tuple(slots.ignored)), slots.refused


class _Slots:
    """A reader for the calls of a batch; a problem of one call does not affect the others."""

    def __init__(self, callees: ToolResolver, names: frozenset[str]) -> None:
        self.refused: dict[int, JsonObject] = {}
        self.ignored: list[str] = []
        self._callees = callees
        self._names = names
        self._taken: set[str] = set()

    def read(self, index: int, call: Any, named: set[str]) -> Step:
        """Read one call; if it is wrong, refuse it in its own slot. `named` are the ids that calls give explicitly."""
        pointer = f"/calls/{index}"
        try:
            reading = read_call(call, CALL_KEYS, "name", self._callees.parameters) if isinstance(call, dict) else None
        except UnreadableKeysError as error:
            slot, faults = self._id(index, call.get("id"), pointer, named)
            return self._refuse(Step(index, slot), [*key_problems(error, slot, pointer), *faults], error.details)
        fields = reading.fields if reading is not None else {}
        slot, problems = self._id(index, fields.get("id"), pointer, named)
        try:
            if reading is not None:
                fields, ignored = _called(reading, "name", self._callees)
                self.ignored += [f"{pointer}{each}" for each in ignored]
        except InvalidInputError as error:
            problem = StepProblem(slot, f"{pointer}/arguments", error.message, error.hint)
            return self._refuse(Step(index, slot), [*problems, problem])
        step, more = _slot(index, slot, fields, pointer, self._names - {str(index), slot}, self._callees)
        return self._refuse(step, [*problems, *more])

    def _refuse(self, step: Step, problems: list[StepProblem], details: JsonObject = NO_DETAILS) -> Step:
        if problems:
            self.refused[step.index] = _error(problems, details)
        return step

    def _id(self, index: int, given: Any, pointer: str, named: set[str]) -> tuple[str, list[StepProblem]]:
        """Return the id of a slot (the given one, or its position), which no other slot has, and its problems."""
        slot = str(index) if given is None else str(given)
        while given is None and slot in named:
            slot = f"{slot}_"
        if isinstance(given, bool | dict | list | float) or not slot or len(slot) > MAX_SLOT_ID:
            hint = f"texts of up to {MAX_SLOT_ID} characters, or whole numbers; leave it out for the position"
            return str(index), [StepProblem(str(index), f"{pointer}/id", "the id cannot be used", hint)]
        if slot in self._taken:
            message = f"an earlier call has the id {slot!r} as well"
            return slot, [StepProblem(slot, f"{pointer}/id", message, "give each call an id of its own, or none")]
        self._taken.add(slot)
        return slot, []


def _slot_names(calls: list[Any]) -> frozenset[str]:
    """Return the names with which one call could try to read another's result: positions and ids."""
    ids = (str(call["id"]) for call in calls if isinstance(call, dict) and call.get("id") is not None)
    return frozenset([*map(str, range(len(calls))), *ids])


def _slot(
    index: int, slot: str, fields: JsonObject, pointer: str, others: frozenset[str], callees: ToolResolver
) -> tuple[Step, list[StepProblem]]:
    name = fields.get("name")
    if not isinstance(name, str) or not name:
        message = "a call is an object with the name of a tool"
        hint = 'for example {"name": "server__tool", "arguments": {}}'
        return Step(index, slot), [StepProblem(slot, pointer, message, hint)]
    problems: list[StepProblem] = []
    arguments = arguments_of(fields.get("arguments"), slot, f"{pointer}/arguments", problems)
    arguments, unfilled = filled(callees.parameters(name, {}), arguments, name)
    for each in unfilled:
        problems.append(StepProblem(slot, f"{pointer}/arguments{each['path']}", each["message"], each["hint"]))
    template = _template(arguments, slot, f"{pointer}/arguments", problems, others)
    etag = etag_of(fields, slot, pointer, problems)
    return Step(index, slot, tool=name, given=arguments, arguments=template, if_none_match=etag), problems


def _error(problems: list[StepProblem], details: JsonObject) -> JsonObject:
    """Return the error of a slot whose call was not made."""
    message = "; ".join(f"{problem.path}: {problem.message}" for problem in problems)
    errors = [problem.as_json() for problem in problems]
    return error_json(ErrorCode.INVALID_INPUT, message, hint=problems[0].hint, details={**details, "errors": errors})


def _template(
    arguments: JsonObject, slot: str, pointer: str, problems: list[StepProblem], others: frozenset[str]
) -> Template:
    try:
        return compile_template(arguments, names=others, reads_steps=False)
    except InvalidInputError as error:
        place = pointer + str(error.details.get("pointer", ""))
        problems.append(StepProblem(slot, place, error.message, error.hint))
        return LiteralTemplate({})
