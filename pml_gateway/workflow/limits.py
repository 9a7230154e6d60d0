"""The settings of workflows become the limits of one run."""

from __future__ import annotations

from pml_gateway.config.settings import WorkflowSettings
from pml_gateway.workflow.plan import Budget


def limits_of(settings: WorkflowSettings) -> Budget:
    """The configured limits, which requests may only tighten."""
    return Budget(settings.max_steps, settings.max_tokens, settings.max_seconds, settings.max_parallel)
