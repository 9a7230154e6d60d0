"""Results of the owner's operations, as JSON has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from pml_gateway.types import JsonObject

if TYPE_CHECKING:
    from pml_gateway.reports.verdicts import ExplainedTool
    from pml_gateway.reports.workflows import CheckedWorkflow


class Reconnecting(TypedDict):
    """Server to which a process connects anew."""

    reconnecting: str
    pid: int


class AskedApprovals(TypedDict):
    """Calls that wait for their owner's approval in one process, and those that were answered lately."""

    pid: int
    approvals: list[JsonObject]


class FoundApproval(TypedDict):
    """One of them with its arguments; None in a process that does not have it."""

    approval: JsonObject | None


class Listening(TypedDict):
    """Address at which the gateway is served over HTTP."""

    url: str


class OpenedConsole(TypedDict):
    """Address that opens the console of a process, if it serves one, and the configuration of that process."""

    url: str | None
    config: str


class Ended(TypedDict):
    """Number of clients whose requests were cut off; `http` has the arguments of that operation for the next one."""

    unfinished: int
    http: Mapping[str, Any] | None


class ToolResult(TypedDict):
    """Result of a tool, as of MCP."""

    content: list[JsonObject]
    structuredContent: NotRequired[JsonObject]
    isError: NotRequired[bool]


class CalledTool(TypedDict, total=False):
    """Result of the tool, or the error in the words of the command line."""

    answer: ToolResult
    wrong: JsonObject


class ToolDescription(TypedDict):
    """Name, cost and parameters of a tool; `tool` is the name that its server gives it."""

    name: str
    server: str
    tool: str
    effect: str
    tokens: int
    description: str
    inputSchema: JsonObject


class ToolRow(TypedDict):
    """Row of a list of tools; `reason` says what lists it for a client, `state` is `ok` or `stale`.

    `effect` is `read`, `write`, `destructive` or `unknown`; None for the gateway's own tools.
    """

    name: str
    server: str | None
    reason: str | None
    score: float | None
    state: str
    effect: str | None
    description: str


class TriedRules(TypedDict):
    """Decision about one call: `allow`, `ask` or `deny`, the rule behind it, and who is asked."""

    tool: str
    client: str
    action: str
    rule: str
    answered_by: str | None


class RedecidedCalls(TypedDict):
    """Recorded calls of one tool by one client, with the decisions before and after a change of rules.

    A decision that depends on arguments that were not kept is `unknown`.
    """

    tool: str
    client: str
    count: int
    before: str
    after: str
    rule: str


class ReplayedRules(TypedDict):
    """Recorded calls by decisions, and the number of calls that no configured tool or client belongs to any more."""

    calls: list[RedecidedCalls]
    gone: int


class ListedTools(TypedDict):
    """List of tools, and the servers with unknown tools."""

    tools: list[ToolRow]
    unlisted: list[str]


class ListChange(TypedDict):
    """Difference that tried settings make to a list: the tools that come in and go out, and the tokens before."""

    comes_in: list[str]
    goes_out: list[str]
    tokens_before: int


class ExplainedTools(TypedDict):
    """List that a client gets, with its tokens, explained for every tool.

    `other_tools` counts the tools that the gateway adds, meta-tools above all. `change` is None if nothing is tried.
    `deciding` are the settings by dotted key that decide, `clients` and `sets` the names of those that there are.
    """

    mode: str
    intent: str | None
    follow: str
    client: str
    direct_calls: str
    tokens: int
    other_tools: int
    change: ListChange | None
    deciding: dict[str, Any]
    clients: list[str]
    sets: list[str]
    tools: list[ExplainedTool]


class ListedOffers(TypedDict):
    """Prompts, resources and templates by kind, errors of servers that could not be asked, and the number of all."""

    listed: dict[str, list[JsonObject]]
    failed: dict[str, str]
    servers: int


class ListedSkill(TypedDict):
    """One skill; `files` are the URIs of all its files, if its server lists them."""

    name: str
    server: str
    description: str
    uri: str
    files: list[str]


class ListedSkills(TypedDict):
    """Skills, and what keeps others in the folders of the configuration from being served."""

    skills: list[ListedSkill]
    faults: list[str]
    failed: dict[str, str]
    servers: int


class GotPrompt(TypedDict):
    """Prompt, as of MCP."""

    description: NotRequired[str]
    messages: list[JsonObject]


class ReadResource(TypedDict):
    """Contents of a resource, as of MCP."""

    contents: list[JsonObject]


class Workflows(TypedDict):
    """Workflows of the configuration."""

    workflows: list[CheckedWorkflow]


class Started(TypedDict):
    """Servers that are ready, that failed, with the reason, and that are still starting."""

    ready: list[str]
    failed: dict[str, str]
    starting: list[str]


class SetRow(TypedDict):
    """Set of the configuration: what it says, who is given it, and how many tools a client with it alone sees."""

    name: str
    include: list[str]
    exclude: list[str]
    effects: list[str]
    mode: str | None
    preset: str | None
    intent: str | None
    given_to: list[str]
    tools: int


class ListedSets(TypedDict):
    """Sets of the configuration."""

    sets: list[SetRow]


class Decided(TypedDict):
    """Tool, prompt, resource or template, whether a client sees it, the rule that decided, and the keys that have it.

    `effect` is None for all but tools.
    """

    name: str
    kind: str
    server: str
    effect: str | None
    visible: bool
    rule: str
    keys: list[str]


class TriedClient(TypedDict):
    """Rights of a client, with the decision on each thing asked about; `groups` are keys of sets that it has together.

    A thing must be given by each group.
    """

    client: str
    roles: list[str]
    groups: list[list[str]]
    mode: str
    intent: str | None
    meta_tools: list[str]
    direct_calls: str
    decided: list[Decided]


class ClientReach(TypedDict):
    """Number of tools that a client sees, of those asked about, and its mode."""

    client: str
    mode: str
    sees: int


class RuleReach(TypedDict):
    """Rule about calls, with the clients that it is about."""

    rule: str
    action: str
    match: JsonObject
    clients: list[str]


class ServerReach(TypedDict):
    """Tools of a server by their public and own names; clients that see them, rules and entries about them."""

    tools: dict[str, str]
    clients: list[ClientReach]
    rules: list[RuleReach]
    entries: list[tuple[str, str]]


class StarterQueries(TypedDict):
    """Rows of a file of queries."""

    queries: list[JsonObject]


class ExampleText(TypedDict):
    """Example query and its origin."""

    text: str
    origin: str


class ExamplesOfTool(TypedDict):
    """Examples of one tool; `digest` is that of its definition."""

    name: str
    server: str
    digest: str
    examples: list[ExampleText]


class KnownExamples(TypedDict):
    """Chosen tools with their examples, and the digests of all definitions of the catalog."""

    tools: list[ExamplesOfTool]
    digests: list[str]


class LearnedTool(TypedDict):
    """Searches after which a tool was called, as examples of it."""

    server: str
    name: str
    digest: str
    examples: list[str]


class LearnedExamples(TypedDict):
    """Examples from use."""

    tools: list[LearnedTool]
