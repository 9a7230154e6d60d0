"""The graph of a recorded workflow: its steps in the order in which they wait for each other, each with its state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pml_gateway.activity.accesses import RecordedAccess
from pml_gateway.config.settings import Settings
from pml_gateway.workflow.composite import COMPOSITES, read_composites
from pml_gateway.workflow.parse import parse_workflow
from pml_gateway.workflow.plan import Plan, PlanError, Step, limits_of


@dataclass(frozen=True, slots=True)
class StepState:
    """One step: the steps that it waits for, and its calls; a step without a call was skipped, or calls nothing."""

    id: str
    tool: str
    after: tuple[str, ...]
    calls: tuple[RecordedAccess, ...]


def graph_of(request: Sequence[RecordedAccess], settings: Settings) -> list[list[StepState]]:
    """Return the steps of the workflow that a request ran, in layers; none if it ran none, or its steps are not known.

    Steps of `execute_workflow` are known if the values of arguments are kept; those of the configuration always are.
    """
    for access in request:
        plan = _plan(access, settings)
        if plan is not None:
            states = {each.id: each for each in _states(plan, request)}
            return [[states[id_] for id_ in layer] for layer in plan.layers]
    return []


def _plan(access: RecordedAccess, settings: Settings) -> Plan | None:
    limits = limits_of(settings.workflow)
    if access.server == COMPOSITES:
        composite = read_composites(settings.workflows, limits).get(access.tool)
        return None if composite is None else composite.plan
    if access.server or access.target != "execute_workflow" or access.kept not in ("masked", "whole"):
        return None
    try:
        plan, _ = parse_workflow(access.arguments or {}, limits)
    except PlanError:
        return None
    return plan


def _states(plan: Plan, request: Sequence[RecordedAccess]) -> Iterator[StepState]:
    """Yield the state of each step. Steps of the same tool take its calls in the order in which they began."""
    left = sorted((each for each in request if each.how in ("workflow", "composite")), key=lambda each: each.at)
    places = {id_: place for place, layer in enumerate(plan.layers) for id_ in layer}
    for step in sorted(plan.steps, key=lambda step: (places[step.id], step.index)):
        own = [each for each in left if step.tool in _names(each)]
        others_follow = any(each.tool == step.tool and each.index != step.index for each in plan.steps)
        taken = own[:1] if others_follow or step.for_each is None else own
        left = [each for each in left if each not in taken]
        yield StepState(step.id, _tool(step), tuple(plan.steps[at].id for at in sorted(step.after)), tuple(taken))


def _names(access: RecordedAccess) -> tuple[str, ...]:
    return access.target, f"{access.server}:{access.tool}", f"{access.server}/{access.tool}", access.tool


def _tool(step: Step) -> str:
    return step.tool or ("transform" if step.transform is not None else "")
