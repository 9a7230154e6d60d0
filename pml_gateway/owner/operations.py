"""The operations of the owner: one table of what answers each, and of its result.

A request is one line, `{"operation": {"name", "arguments"}}`; for the gateway of a folder, with the keys of a bridge's
first line. Notices may follow, then the answer in one line: a `result` or an `error`, and warnings.

Commands ask the gateway that runs, and start the shared one if none does. They open one in their own process only where
`local.attach` is false. `pml add` also does, for the new server alone, if no gateway runs that could look at it: its
other servers need not start for that. `pml serve --alone` and `pml demo` are gateways themselves.

No operation is for what lies in files that gateways watch or read anew: the configuration, accepted definitions (`pml
trust`), examples of the library and the journal of migrations; a command edits them, and `reload` has them served at
once.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, is_dataclass
from importlib import import_module
from typing import Any, Generic, TypeVar, cast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Never

    from pml_gateway.activity.statistics import Figures
    from pml_gateway.example_queries.enrichment import SendableTools
    from pml_gateway.owner import results
    from pml_gateway.reports.doctor.cases import Examined
    from pml_gateway.reports.replay import PlannedMigration
    from pml_gateway.reports.search_quality import SearchQuality
    from pml_gateway.reports.status import ProcessStatus
    from pml_gateway.reports.token_costs import CatalogCosts, TokenReport
    from pml_gateway.types import JsonObject

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Operation(Generic[ResultT]):
    """An operation. The function that answers it has its name, its parameters and the type of its result.

    Args:
        name: name of the operation.
        dataclass: `module.Class` of a result that is a dataclass; others are JSON, as a TypedDict describes it.
    """

    name: str
    dataclass: str = field(default="", kw_only=True)

    def decoded(self, result: object) -> ResultT:
        """Return the result of an answer that was read as JSON."""
        if not self.dataclass:
            return cast("ResultT", result)
        # Imported late: most commands need no more than the JSON.
        from pydantic import TypeAdapter

        read: ResultT = TypeAdapter(_named(self.dataclass)).validate_python(result)
        return read


def encoded(result: object) -> JsonObject:
    """Return a result as JSON."""
    return asdict(result) if is_dataclass(result) and not isinstance(result, type) else cast("JsonObject", result)


def _named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"pml_gateway.{module}"), name)


@dataclass(frozen=True, slots=True)
class OfProcess(Operation[ResultT]):
    """An operation of a process that serves, with all of its gateways, answered by a method of the process.

    Args:
        name: name of the operation and the method.
        is_shared: True if only the process that clients share answers it.
    """

    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class OfGateway(Operation[ResultT]):
    """An operation of one gateway, the one for the folder and the options of the command.

    Args:
        name: name of the operation and the function.
        module: module of the function in `owner/answers/`; its first parameter is the context.
        is_of_all: True if its answer is about every server, so that those without known tools are named.
        lists: True if its answer may depend on an intent, so that warnings that none is configured are passed on.
        waits: False if it answers before the tools of any server are known.
    """

    module: str
    is_of_all: bool = False
    lists: bool = False
    waits: bool = True

    @property
    def run(self) -> Callable[..., Awaitable[Any]]:
        """Return the function."""
        run: Callable[..., Awaitable[Any]] = _named(f"owner.answers.{self.module}.{self.name}")
        return run


STATUS: OfProcess[ProcessStatus] = OfProcess("status")
REFRESH: OfProcess[ProcessStatus] = OfProcess("refresh")
RELOAD: OfProcess[ProcessStatus] = OfProcess("reload")
RECONNECT: OfProcess[results.Reconnecting] = OfProcess("reconnect")
APPROVALS: OfProcess[results.AskedApprovals] = OfProcess("approvals")
APPROVAL: OfProcess[results.FoundApproval] = OfProcess("approval")
ANSWER_APPROVAL: OfProcess[results.FoundApproval] = OfProcess("answer_approval")
CONSOLE: OfProcess[results.OpenedConsole] = OfProcess("console")
EXPECT: OfProcess[ProcessStatus] = OfProcess("expect", is_shared=True)
KEEP: OfProcess[ProcessStatus] = OfProcess("keep", is_shared=True)
HTTP: OfProcess[results.Listening] = OfProcess("http", is_shared=True)
DOWN: OfProcess[results.Ended] = OfProcess("down", is_shared=True)
RESTART: OfProcess[results.Ended] = OfProcess("restart", is_shared=True)

CALL: OfGateway[results.CalledTool] = OfGateway("call", "calls")
DESCRIBE: OfGateway[results.ToolDescription] = OfGateway("describe", "calls")
SEARCH: OfGateway[results.ToolResult] = OfGateway("search", "searches", is_of_all=True)
SCHEMA: OfGateway[results.ToolResult] = OfGateway("schema", "searches", is_of_all=True)
TOOLS: OfGateway[results.ListedTools] = OfGateway("tools", "listings", is_of_all=True, lists=True)
EXPLAIN: OfGateway[results.ExplainedTools] = OfGateway("explain", "listings", lists=True)
TOKENS: OfGateway[TokenReport] = OfGateway("tokens", "tokens", is_of_all=True)
WATCH_TOKENS: OfGateway[Never] = OfGateway("watch_tokens", "tokens")
PRESET_COSTS: OfGateway[CatalogCosts] = OfGateway("preset_costs", "tokens")
STATS: OfGateway[Figures] = OfGateway("stats", "activity")
OFFERS: OfGateway[results.ListedOffers] = OfGateway("offers", "prompts_and_resources")
PROMPT: OfGateway[results.GotPrompt] = OfGateway("prompt", "prompts_and_resources")
RESOURCE: OfGateway[results.ReadResource] = OfGateway("resource", "prompts_and_resources")
SETS: OfGateway[results.ListedSets] = OfGateway("sets", "sets", is_of_all=True)
TRY_CLIENT: OfGateway[results.TriedClient] = OfGateway("try_client", "sets", is_of_all=True)
REACH: OfGateway[results.ServerReach] = OfGateway("reach", "reach")
SKILLS: OfGateway[results.ListedSkills] = OfGateway("skills", "prompts_and_resources")
SKILL: OfGateway[results.ReadResource] = OfGateway("skill", "prompts_and_resources")
WORKFLOWS: OfGateway[results.Workflows] = OfGateway("workflows", "calls")
RUN_WORKFLOW: OfGateway[results.ToolResult] = OfGateway("run_workflow", "calls")
EXECUTE_WORKFLOW: OfGateway[results.ToolResult] = OfGateway("execute_workflow", "calls")
START: OfGateway[results.Started] = OfGateway("start", "starts")
PROBE: OfGateway[ProcessStatus] = OfGateway("probe", "starts", waits=False)
EXAMINE: OfGateway[Examined] = OfGateway("examine", "starts", waits=False, dataclass="reports.doctor.cases.Examined")
EVALUATE: OfGateway[SearchQuality] = OfGateway("evaluate", "searches")
STARTER_QUERIES: OfGateway[results.StarterQueries] = OfGateway("starter_queries", "searches")
PLAN_MIGRATION: OfGateway[PlannedMigration] = OfGateway("plan_migration", "activity")
EXAMPLES: OfGateway[results.KnownExamples] = OfGateway("examples", "example_queries", is_of_all=True)
LEARN_EXAMPLES: OfGateway[results.LearnedExamples] = OfGateway("learn_examples", "example_queries", is_of_all=True)
TRY_RULES: OfGateway[results.TriedRules] = OfGateway("try_rules", "rules")
REPLAY_RULES: OfGateway[results.ReplayedRules] = OfGateway("replay_rules", "rules")
SENDABLE_TOOLS: OfGateway[SendableTools] = OfGateway(
    "sendable_tools", "example_queries", is_of_all=True, dataclass="example_queries.enrichment.SendableTools"
)

OPERATIONS: dict[str, OfProcess[Any] | OfGateway[Any]] = {
    each.name: each for each in [*globals().values()] if isinstance(each, OfProcess | OfGateway)
}
