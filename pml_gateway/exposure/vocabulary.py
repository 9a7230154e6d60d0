"""The names that models use for keys of the gateway's own tools, mapped to the declared keys.

Each key is used, or reported in the result as one that clients add, or refused; none is dropped silently.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pml_gateway.catalog.pointers import escaped
from pml_gateway.errors import InvalidInputError
from pml_gateway.exposure.grouping import loosely
from pml_gateway.exposure.parameter_names import Names, subject_of
from pml_gateway.exposure.shallow_check import json_type, wrong_types
from pml_gateway.text import nearest
from pml_gateway.types import JsonObject

ARGUMENTS = "arguments"
CALL_TOOL = "call_tool"

CLIENT_KEYS: Mapping[str, frozenset[str] | None] = {
    # n8n; `action` only with the value that its chat gives it.
    "toolCallId": None,
    "sessionId": None,
    "chatInput": None,
    "action": frozenset({"sendMessage"}),
    # Gemini CLI and Antigravity.
    "wait_for_previous": None,
    "waitForPreviousTools": None,
    "toolAction": None,
    "toolSummary": None,
    # Cline, Cursor, OpenHands.
    "task_progress": None,
    "random_string": None,
    "explanation": None,
    "security_risk": None,
    # Frameworks, and protocol metadata one level too deep.
    "tool_use_id": None,
    "thread_id": None,
    "run_id": None,
    "run_manager": None,
    "_meta": None,
    "progressToken": None,
    # Names of model APIs for the kind of a call.
    "type": frozenset({"function", "tool_use", "tool_call", "function_call", "mcp_tool_call"}),
}
"""Keys that clients add to every call, with the only values that identify them (None for any value)."""

REMARKS = frozenset(
    {"description", "comment", "comments", "note", "notes", "reason", "reasoning", "rationale", "thought"}
)
"""Keys with which models explain a call; ignored, unless the called tool has a parameter of that name."""

MAX_SHOWN = 64
MAX_CORRECTED = 2000
"""Maximum characters of a key in a message, and of a corrected request in the details of an error."""

_CALLING = (CALL_TOOL, "tools/call")
_FENCED = re.compile(r"\s*```\w*\s(.*\S)\s*```\s*\Z", re.DOTALL)
_CLIENT_KEYS = {loosely(key): values for key, values in CLIENT_KEYS.items()}

Parameters = Callable[[Any, JsonObject], Mapping[str, Any] | None]
"""Returns the parameters' schemas of the tool of this name, given the request; None if there is no such tool."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NAME_WORDS = _words(
    "name names tool tools toolname toolnames toolid operation operations operationname function functions "
    "functionname method"
)
ARGUMENT_WORDS = _words(
    "arguments args argument arg parameters params input inputs kwargs payload toolarguments toolargs toolinput "
    "toolparameters toolparams namedarguments"
)
_GROUPS: tuple[frozenset[str], ...] = (
    NAME_WORDS,
    ARGUMENT_WORDS,
    _words(
        "query q search searchquery searchterm searchtext querytext querystring keywords keyword term terms text "
        "prompt question task intent goal objective request instruction instructions"
    ),
    _words("query name tool toolname"),
    _words("search grep pattern find contains query q"),
    _words("regex regexp isregex useregex isregexp"),
    _words("context contextlines linesaround"),
    _words(
        "limit topk k n count top topn maxresults numresults numberofresults maxcount max size pagesize maxhits "
        "maxitems perpage resultlimit"
    ),
    _words("offset skip start startat startindex"),
    _words("server servername serverid upstream upstreamid mcpserver namespace servers"),
    _words("detail details detaillevel verbosity"),
    _words("maxtokens tokenlimit tokenbudget"),
    _words("format outputformat"),
    _words(
        "calls steps toolcalls requests operations invocations tools tasks actions jobs commands batch nodes workflow "
        "plan items"
    ),
    _words("maxparallel parallelism concurrency maxconcurrency maxconcurrent"),
    _words("onerror onfailure onfail errorhandling errorpolicy"),
    _words("dryrun validateonly checkonly planonly simulate preview"),
    _words("budget budgets limits"),
    _words("return returns returnsteps output outputs"),
    _words("ref reference refid referenceid handle resultref resultid resulthandle id"),
    _words("path jmespath jsonpath expression selector"),
    _words("transform jmespath expression mapping"),
    _words("lines linerange"),
    _words("id stepid slotid callid"),
    _words("dependson needs after requires dependencies dependency deps waitfor"),
    _words("foreach loop loopover iterate over"),
    _words("when if condition onlyif"),
    _words("timeout timeoutseconds"),
    _words("ifnonematch etag"),
    _words("section topic"),
    _words("how mode"),
)
"""Synonyms, without case and separators. If a word is in several groups, the declared keys decide."""

LINE_WORDS = _words("startline endline linestart lineend fromline toline head tail firstlines lastlines")
"""Keys for a part of `lines`, whose values must not be taken for the whole range."""


@dataclass(frozen=True, slots=True)
class KeyProblem:
    """A key that cannot be read: its place, the reason, a hint, and the similar declared or original keys."""

    path: str
    message: str
    hint: str
    closest: tuple[str, ...] = ()


class UnreadableKeysError(InvalidInputError):
    """The request has keys that are unknown, or several with the same meaning."""

    def __init__(self, problems: Iterable[KeyProblem], corrected: JsonObject | None = None) -> None:
        self.problems = tuple(problems)
        closest = dict.fromkeys(key for problem in self.problems for key in problem.closest)
        details: JsonObject = {
            "errors": [{"path": each.path, "message": each.message, "hint": each.hint} for each in self.problems],
            "closest": list(closest),
        }
        if corrected is not None and len(str(corrected)) <= MAX_CORRECTED:
            details["corrected"] = {key: value for key, value in corrected.items() if value is not None}
        super().__init__(
            "; ".join(problem.message for problem in self.problems),
            hint="; ".join(problem.hint for problem in self.problems),
            details=details,
        )


@dataclass(frozen=True, slots=True)
class SchemaReading:
    """A request under the declared keys, and the keys that were left out because clients add them."""

    fields: JsonObject
    ignored: tuple[str, ...] = ()


def read(given: JsonObject, known: Collection[str], *, calls_in: str = "") -> SchemaReading:
    """Return the fields under the declared keys; null is the same as leaving a field out.

    `calls_in` is the key of a list of calls: the error for a single call says to put it there.

    Raises:
        UnreadableKeysError: a key is unknown, or two keys with one meaning have different values.
    """
    if known_alone(given, known):
        return SchemaReading(given)
    given = _opened(given, known)
    fields = {key: value for key, value in given.items() if key in known and value is not None}
    written = {key: key for key in fields}
    problems: list[KeyProblem] = []
    ignored: list[str] = []
    corrected: JsonObject | None = dict(given)
    for key, value in given.items():
        if key in known:
            continue
        target = meaning(key, known)
        if target is None and is_of_client(key, value, remarks=True):
            ignored.append(key)
        elif target is None:
            problems.append(unknown(key, known))
            corrected = _renamed(corrected, key, problems[-1].closest, known)
        elif value is not None and not _put(target, key, value, fields, written):
            problems.append(twice(target, key, written[target]))
            corrected = None
    if problems and calls_in and calls_in not in fields and any(loosely(key) in NAME_WORDS for key in given):
        outside = f"{calls_in!r} is missing, and there is a call outside it"
        hint = f'put the call into a list under "{calls_in}"'
        raise UnreadableKeysError([KeyProblem("", outside, hint, (calls_in,))], {calls_in: [given]})
    if problems:
        raise UnreadableKeysError(problems, corrected)
    return SchemaReading(fields, tuple(ignored))


def _opened(given: JsonObject, known: Collection[str]) -> JsonObject:
    """Return the request inside an arguments key, if that is the only key."""
    if len(given) != 1:
        return given
    [(key, value)] = given.items()
    inside = object_in(value) if loosely(key) in ARGUMENT_WORDS and meaning(key, known) is None else None
    return inside or given


def known_alone(given: JsonObject, known: Collection[str]) -> bool:
    """Return True if every key is declared and has a value, as nearly always: then no mapping is needed."""
    return all(key in known and value is not None for key, value in given.items())


def meaning(key: str, known: Collection[str]) -> str | None:
    """Return the declared key that another one stands for; None if there is none, or more than one."""
    if key in known:
        return key
    word = loosely(key)
    same = [each for each in known if loosely(each) == word]
    if not same:
        same = [each for each in known if any(word in group and loosely(each) in group for group in _GROUPS)]
    return same[0] if len(same) == 1 and word else None


def is_of_client(key: str, value: object, *, remarks: bool = False) -> bool:
    """Return True if clients add this key, with this value, to any call; with `remarks`, also if models do."""
    word = loosely(key)
    if remarks and key in REMARKS:
        return True
    if word not in _CLIENT_KEYS:
        return False
    values = _CLIENT_KEYS[word]
    return values is None or (isinstance(value, str) and value in values)


def unknown(key: str, known: Collection[str]) -> KeyProblem:
    """Return the problem of an unknown key."""
    shown = key[:MAX_SHOWN]
    if loosely(key) in LINE_WORDS and "lines" in known:
        hint = f'write "lines": "10-20", or "-20" for the last twenty, instead of "{shown}"'
        return KeyProblem(f"/{escaped(shown)}", f"unknown key {shown!r}", hint, ("lines",))
    closest = tuple(nearest(key, known))
    listed = ", ".join(known)
    hint = f'write "{closest[0]}" instead of "{shown}"' if closest else f'leave out "{shown}"; the keys are {listed}'
    return KeyProblem(f"/{escaped(shown)}", f"unknown key {shown!r}", hint, closest)


def twice(target: str, key: str, other: str) -> KeyProblem:
    """Return the problem of two keys with the same meaning."""
    shown, kept = key[:MAX_SHOWN], other[:MAX_SHOWN]
    message = f"{shown!r} and {kept!r} both say {target!r}, differently"
    return KeyProblem(f"/{escaped(shown)}", message, f'keep "{kept}", and leave out "{shown}"', (target,))


def _put(target: str, key: str, value: Any, fields: JsonObject, written: dict[str, str]) -> bool:
    """Set a declared key; return False if it already has another value."""
    if target in fields:
        return bool(fields[target] == value)
    fields[target], written[target] = value, key
    return True


def _renamed(
    request: JsonObject | None, key: str, closest: tuple[str, ...], known: Collection[str]
) -> JsonObject | None:
    """Return the request with a key replaced by its nearest name, or removed; None if that name is already given."""
    if (
        request is None
        or loosely(key) in LINE_WORDS
        or (closest and any(meaning(each, known) == closest[0] for each in request))
    ):
        return None
    if not closest:
        return {each: value for each, value in request.items() if each != key}
    return {(closest[0] if each == key else each): value for each, value in request.items()}


def object_in(value: Any) -> JsonObject | None:
    """Return an object, also from JSON text or from a list of one entry, as models send it; None for anything else."""
    value = from_text(value)
    if isinstance(value, list) and len(value) < 2:
        # PHP writes an empty object as an empty list.
        value = from_text(value[0]) if value else {}
    return value if isinstance(value, dict) else None


def from_text(value: Any) -> Any:
    """Parse a list or object from JSON text, also in a code fence or encoded twice; return any other value as it is."""
    text = value
    for _ in range(2):
        fenced = _FENCED.match(text) if isinstance(text, str) and text[:64].lstrip().startswith("```") else None
        text = fenced[1] if fenced is not None else text
        if not isinstance(text, str) or text[:64].lstrip()[:1] not in ("{", "[", '"'):
            break
        try:
            text = json.loads(text)
        except (ValueError, RecursionError):
            return value
    return text if isinstance(text, dict | list) else value


def read_call(given: JsonObject, known: Collection[str], name_key: str, parameters: Parameters) -> SchemaReading:
    """Return the fields of one call, whose arguments may also be flat, next to the name of the tool.

    They are flat if `arguments` is not given, and every other key is a parameter of that tool. A key is never guessed:
    if it may be one of the call's own or a parameter of the tool, it is refused.

    Args:
        given: the request.
        known: the declared keys, including `arguments` and the one for the tool's name.
        name_key: the key for the tool's name.
        parameters: returns the parameters of a tool by name.

    Raises:
        UnreadableKeysError: as `read`.
    """
    if (
        name_key in given
        and known_alone(given, known)
        and isinstance(given[name_key], str)
        and given[name_key] != CALL_TOOL
    ):
        return SchemaReading(given)
    return _Call(_named(_unwrapped(given), name_key, parameters), known, name_key, parameters).read()


def _named(given: JsonObject, name_key: str, parameters: Parameters) -> JsonObject:
    """Return a call that was written as `{tool name: arguments}` under the usual keys."""
    if len(given) != 1:
        return given
    [(name, value)] = given.items()
    arguments = object_in(value) if loosely(name) not in (NAME_WORDS | ARGUMENT_WORDS) else None
    if arguments is None or parameters(name, {}) is None:
        return given
    return {name_key: name, ARGUMENTS: arguments}


def _unwrapped(given: JsonObject) -> JsonObject:
    """Return a call without the wrappers of model APIs, the protocol and this gateway: `function`, `call_tool`."""
    sent = {key: value for key, value in given.items() if loosely(key) not in NAME_WORDS or value not in _CALLING}
    held = {key: inside for key, value in sent.items() if (inside := _call_in(key, value)) is not None}
    says = [key for key in sent if key not in held and loosely(key) in (NAME_WORDS | ARGUMENT_WORDS)]
    if len(held) != 1 or says:
        return given
    [(holder, inside)] = held.items()
    around = {key: value for key, value in sent.items() if key != holder}
    return given if around.keys() & inside.keys() else around | inside


def _call_in(key: str, value: Any) -> JsonObject | None:
    inside = object_in(value) if loosely(key) in (NAME_WORDS | ARGUMENT_WORDS) else None
    named = inside is not None and any(loosely(each) in NAME_WORDS and isinstance(inside[each], str) for each in inside)
    return inside if named else None


@dataclass(slots=True)
class _Call:
    given: JsonObject
    known: Collection[str]
    name_key: str
    parameters: Parameters
    fields: JsonObject = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    problems: list[KeyProblem] = field(default_factory=list)
    takes: Mapping[str, Any] | None = None
    envelopes: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def read(self) -> SchemaReading:
        """Return the call under its declared keys."""
        named = self._name()
        self.takes = self.parameters(self.fields.get(self.name_key), self.given)
        for key, value in self.given.items():
            if key not in named:
                self._sort(key, value)
        if ARGUMENTS in self.fields:
            self._refuse_beside_arguments()
        elif self.envelopes or self.left:
            self._take_arguments()
        if self.problems:
            raise UnreadableKeysError(self.problems, self._corrected())
        return SchemaReading(self.fields, tuple(self.ignored))

    def _name(self) -> list[str]:
        """Set the name; return the keys that contained it."""
        says = [key for key, value in self.given.items() if value is not None and self._is(key, NAME_WORDS)]
        first = [key for key in says if loosely(key) in ("name", "tool")] or says
        if not says:
            return []
        main = self.name_key if self.name_key in first else first[0]
        if any(self.given[other] != self.given[main] for other in first):
            tools = [key for key in first if self.parameters(self.given[key], self.given) is not None]
            main = tools[0] if len(tools) == 1 else main
            self.problems += [self._second_name(key, main) for key in first if self.given[key] != self.given[main]]
        value = self.given[main]
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        self.fields[self.name_key], self.written[self.name_key] = value, main
        return first

    def _second_name(self, key: str, main: str) -> KeyProblem:
        found = twice(self.name_key, key, main)
        if key not in (self.parameters(self.given[main], self.given) or {}):
            return found
        name = str(self.given[main])[:MAX_SHOWN]
        hint = f'write "{self.name_key}": "{name}", and put "{key}" into "{ARGUMENTS}"'
        return KeyProblem(found.path, f"{key!r} may be the parameter of {name}, or the name", hint, (ARGUMENTS,))

    def _is(self, key: str, words: frozenset[str]) -> bool:
        return loosely(key) in words and (key not in self.known or key in (self.name_key, ARGUMENTS))

    def _sort(self, key: str, value: Any) -> None:
        """Classify one key: declared, added by clients, all arguments in one value, or a possible parameter."""
        of_tool = self.takes is not None and key in self.takes
        if key in self.known and value is None:
            return
        if key in self.known:
            _put(key, key, value, self.fields, self.written)
        elif is_of_client(key, value) and meaning(key, self.known) is None:
            self._ignore(key) if not of_tool or self._has(key) else self._refuse_own(key)
        elif key in REMARKS and not of_tool:
            self._ignore(key)
        elif self._is(key, ARGUMENT_WORDS):
            self.envelopes += [key] if value is not None or of_tool else []
        elif (target := meaning(key, self.known)) is None or target == self.name_key:
            self.left.append(key)
        elif of_tool and not self._arguments_given():
            self._refuse_own(key)
        elif value is not None and not _put(target, key, value, self.fields, self.written):
            self.problems.append(twice(target, key, self.written[target]))

    def _ignore(self, key: str) -> None:
        self.ignored.append(key)

    def _arguments_given(self) -> bool:
        return self.given.get(ARGUMENTS) is not None or any(self._is(key, ARGUMENT_WORDS) for key in self.given)

    def _has(self, key: str) -> bool:
        """Return True if the arguments themselves have this key, so that the one next to them is not theirs."""
        inside = object_in(self.given.get(ARGUMENTS))
        return inside is not None and key in inside

    def _refuse_own(self, key: str) -> None:
        shown = key[:MAX_SHOWN]
        message = f"{shown!r} next to the name may be the parameter of {self._tool}, or not"
        hint = f'put "{shown}" into "{ARGUMENTS}", or leave it out'
        self.problems.append(KeyProblem(f"/{escaped(shown)}", message, hint, (ARGUMENTS,)))

    @property
    def _tool(self) -> str:
        return str(self.fields.get(self.name_key))[:MAX_SHOWN]

    def _refuse_beside_arguments(self) -> None:
        for key in self.envelopes:
            if not _put(ARGUMENTS, key, self.given[key], self.fields, self.written):
                dropped, kept = (key, ARGUMENTS) if self.fields[ARGUMENTS] else (ARGUMENTS, key)
                self.problems.append(twice(ARGUMENTS, dropped, kept))
        self.problems += [self._unknown(key) for key in self.left]

    def _take_arguments(self) -> None:
        flat = [*self.envelopes, *self.left]
        value = self.given[self.envelopes[0]] if len(self.envelopes) == 1 else None
        as_one = len(self.envelopes) == 1 and not self.left and object_in(value) is not None
        takes = self.takes or {}
        as_flat = self.takes is not None and all(key in takes for key in flat)
        if as_one and as_flat and not wrong_types({"properties": takes}, {flat[0]: value}):
            self.problems.append(self._either(flat[0]))
        elif as_one:
            self.fields[ARGUMENTS] = value
        elif as_flat and self._is_certain(flat):
            self.fields[ARGUMENTS] = {key: self.given[key] for key in flat}
        elif not as_flat and len(self.envelopes) == 1 and not self.left:
            # Not an object; refused later, when it is read.
            self.fields[ARGUMENTS] = value
        elif not as_flat:
            self.problems += [twice(ARGUMENTS, key, self.envelopes[0]) for key in self.envelopes[1:]]
            self.problems += [self._unknown(key) for key in self.left]

    def _is_certain(self, flat: list[str]) -> bool:
        """Return True if no key of a flat call is ambiguous; else add a problem for it."""
        main, takes = self.written.get(self.name_key, self.name_key), self.takes or {}
        doubtful = [key for key in (main, *self.written.values()) if key in takes]
        doubtful += [key for key in flat if self._is(key, NAME_WORDS) and self.parameters(self.given[key], self.given)]
        for key in dict.fromkeys(doubtful):
            message = f"{key!r} says something of the call, and is a parameter of {self._tool} too"
            self.problems.append(KeyProblem(f"/{escaped(key)}", message, self._put_into(flat), (ARGUMENTS,)))
        return not doubtful

    def _put_into(self, keys: list[str]) -> str:
        listed = ", ".join(f'"{key[:MAX_SHOWN]}"' for key in keys)
        return f'put {listed} into "{ARGUMENTS}"'

    def _either(self, key: str) -> KeyProblem:
        message = f"{key!r} may hold the arguments, or be the parameter of {self._tool}"
        hint = f'write "{ARGUMENTS}" instead of "{key}", or put "{key}" into "{ARGUMENTS}"'
        return KeyProblem(f"/{escaped(key)}", message, hint, (ARGUMENTS,))

    def _unknown(self, key: str) -> KeyProblem:
        shown, takes = key[:MAX_SHOWN], self.takes or {}
        path = f"/{escaped(shown)}"
        if key in takes and self._has(key):
            message = f"{shown!r} stands next to {ARGUMENTS!r} and in it"
            hint = f'leave out "{shown}", or write its value into "{ARGUMENTS}" instead of the other'
            return KeyProblem(path, message, hint, (ARGUMENTS,))
        if key in takes:
            message = f"{shown!r} is a parameter of {self._tool}, and no key of the call"
            return KeyProblem(path, message, self._put_into([key]), (ARGUMENTS,))
        found = unknown(key, self.known)
        given = self.given[key]
        if (
            self.name_key not in self.fields
            and isinstance(given, str)
            and self.parameters(given, self.given) is not None
        ):
            return KeyProblem(path, found.message, f'write "{self.name_key}" instead of "{shown}"', (self.name_key,))
        if found.closest:
            return found
        inside = object_in(self.given.get(ARGUMENTS)) or {}
        reader = Names({"properties": takes}, inside.keys(), subject_of(self._tool))
        reading = reader.read({key: given})[key]
        own = [each for each in (reading.target, *reading.near) if each is not None and each not in inside]
        if own:
            hint = f'put it into "{ARGUMENTS}" as "{own[0]}"'
            return KeyProblem(path, f"unknown key {shown!r}", hint, (ARGUMENTS, own[0]))
        if isinstance(self.given[key], dict) and not self._arguments_given():
            return KeyProblem(path, found.message, f'write "{ARGUMENTS}" instead of "{shown}"', (ARGUMENTS,))
        return found

    def _corrected(self) -> JsonObject | None:
        """Return the call as it was probably meant, for a retry; None if that is unclear."""
        name, takes = self.fields.get(self.name_key), self.takes or {}
        others = [key for key in self.given if self._is(key, NAME_WORDS) and self.given[key] != name]
        for key in (self.written.get(self.name_key, ""), *others):
            named = self.given.get(key)
            own = self.parameters(named, self.given) if named is not None else None
            beside = [each for each in self.given if each not in (key, *self.ignored)]
            if own is not None and beside and all(each in own for each in beside):
                return {self.name_key: named, ARGUMENTS: {each: self.given[each] for each in beside}}
        inside = object_in(self.given.get(ARGUMENTS)) if ARGUMENTS in self.given else {}
        if inside is None or self.envelopes or others:
            return None
        kept = {key: value for key, value in self.fields.items() if key != ARGUMENTS}
        arguments = dict(inside)
        for key in self.left:
            problem = self._unknown(key)
            into_arguments = key in takes or (len(problem.closest) == 2 and problem.closest[0] == ARGUMENTS)
            target = key if key in takes else problem.closest[-1] if problem.closest else None
            if into_arguments and target is not None and target not in arguments:
                arguments[target] = self.given[key]
            elif target == ARGUMENTS and not arguments and (whole := object_in(self.given[key])) is not None:
                arguments = dict(whole)
            elif target is not None and target not in kept and not into_arguments:
                kept[target] = self.given[key]
            elif target is not None:
                return None
        # Without a name, it would be read as something else again.
        return {**kept, **({ARGUMENTS: arguments} if arguments else {})} if self.name_key in kept else None


def kind_of(value: object) -> str:
    """Return the type of a value for messages: `a list`."""
    kinds = {"array": "a list", "object": "an object", "integer": "an integer", "null": "null"}
    kind = json_type(value)
    return kinds.get(kind, f"a {kind}")
