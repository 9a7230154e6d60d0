"""Limits on calls, in one shape wherever the configuration has them."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class SameCallLimit(BaseModel):
    """The loop guard: how often one client may make the same call with the same arguments."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    times: int | None = Field(
        default=None, ge=1, description="loop guard: calls of one client to one tool with equal arguments"
    )
    seconds: float = Field(default=60, gt=0, le=86_400, description="within so many seconds")


class Limits(BaseModel):
    """Limits on calls; of several that apply to a call, the strictest wins. None of them is set unless written."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    calls_per_minute: int | None = Field(default=None, ge=1, description="calls in any 60 seconds")
    calls_per_day: int | None = Field(default=None, ge=1, description="calls in any 24 hours")
    calls_at_once: int | None = Field(
        default=None, ge=1, description="calls at the same time; more wait 10 seconds at most"
    )
    answer_tokens_per_hour: int | None = Field(
        default=None, ge=1, description="o200k_base tokens of answers in any hour; the answer that crosses it is given"
    )
    same_call: SameCallLimit = SameCallLimit()
