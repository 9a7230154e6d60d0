"""The error tree, grouped by who can act.

GatewayError
├── ConfigurationError          the operator
│   ├── SecretError
│   ├── UsageError
│   └── ModelError
├── UpstreamError               the remote side
│   ├── UpstreamUnavailableError
│   │   └── UpstreamUnusableError
│   ├── UpstreamAuthError
│   ├── UpstreamTimeoutError
│   ├── UpstreamBusyError
│   └── UpstreamProtocolError
├── ToolCallError               the calling model
│   ├── ToolNotFoundError
│   ├── ToolHeldBackError
│   ├── ReferenceNotFoundError
│   ├── ToolForbiddenError
│   ├── InvalidInputError
│   ├── RateLimitedError
│   └── BudgetExceededError
├── OverloadedError             us
├── ReplicaUnavailableError     us
├── UnrecordedError             us
├── ResultStoreError            us, or the store the operator named
└── SharedStateError            the Redis server that the operator named
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, Literal, Self


class ErrorCode(StrEnum):
    """The published error codes of tool results."""

    NOT_FOUND = "NOT_FOUND"
    HELD_BACK = "HELD_BACK"
    FORBIDDEN = "FORBIDDEN"
    INVALID_INPUT = "INVALID_INPUT"
    TIMEOUT = "TIMEOUT"
    UPSTREAM_UNAVAILABLE = "UPSTREAM_UNAVAILABLE"
    UPSTREAM_AUTH = "UPSTREAM_AUTH"
    UPSTREAM_ERROR = "UPSTREAM_ERROR"
    RATE_LIMITED = "RATE_LIMITED"
    BUSY = "BUSY"
    BUDGET_EXCEEDED = "BUDGET_EXCEEDED"
    PENDING_APPROVAL = "PENDING_APPROVAL"
    CANCELLED = "CANCELLED"
    INTERNAL = "INTERNAL"


def error_json(
    code: ErrorCode,
    message: str,
    *,
    retryable: bool = False,
    hint: str = "",
    details: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return an error as every answer shows it."""
    return {
        "code": code.value,
        "message": message,
        "retryable": retryable,
        "hint": hint,
        "details": {} if details is None else details,
    }


class GatewayError(Exception):
    """Anything the gateway raises on purpose: a code, a message, a remedy and details as fields."""

    code = ErrorCode.INTERNAL
    retryable = False
    exit_code = 1
    """Exit code of a command that this error ends."""

    def __init__(self, message: str, *, hint: str = "", details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = dict(details or {})

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def as_json(self, *, without: Collection[str] = ()) -> dict[str, Any]:
        """Return the error as every answer shows it, where some fields have no place `without` these."""
        shown = error_json(self.code, self.message, retryable=self.retryable, hint=self.hint, details=self.details)
        return {key: value for key, value in shown.items() if key not in without}

    def anew(self) -> Self:
        """Return the error as a new object: raising the same one again and again would grow its traceback."""
        return type(self)(self.message, hint=self.hint, details=self.details)


class ConfigurationError(GatewayError):
    """The configuration cannot be used as it stands."""

    code = ErrorCode.INVALID_INPUT
    exit_code = 78  # EX_CONFIG of sysexits.h


class SecretError(ConfigurationError):
    """A `${env:NAME}` or `${file:PATH}` reference cannot be resolved."""


class UsageError(ConfigurationError):
    """An option or argument of the command line has a value that it cannot have."""

    exit_code = 2


class ModelError(ConfigurationError):
    """The embedding model named in the configuration cannot be loaded."""


class UpstreamError(GatewayError):
    """An upstream answered with an error of its own."""

    code = ErrorCode.UPSTREAM_ERROR


class UpstreamUnavailableError(UpstreamError):
    """An upstream cannot be reached, or went away during the call."""

    code = ErrorCode.UPSTREAM_UNAVAILABLE
    retryable = True


class UpstreamUnusableError(UpstreamUnavailableError):
    """An upstream that cannot be reached as it is configured: trying again helps nobody before that is corrected."""

    retryable = False


class UpstreamAuthError(UpstreamError):
    """An upstream refused the gateway's credentials."""

    code = ErrorCode.UPSTREAM_AUTH


class UpstreamTimeoutError(UpstreamError):
    """A call reached its deadline; whether the upstream executed it is unknown."""

    code = ErrorCode.TIMEOUT
    retryable = True


class UpstreamBusyError(UpstreamError):
    """The bounded queue in front of an upstream is full; nothing was sent."""

    code = ErrorCode.BUSY
    retryable = True


class UpstreamProtocolError(UpstreamError):
    """An upstream answered outside the protocol."""


class AnswerTooLargeError(UpstreamProtocolError):
    """An upstream answered with more than the gateway reads; asking again costs as much and brings the same."""


class ToolCallError(GatewayError):
    """The calling model asked for something it can correct."""


class ToolNotFoundError(ToolCallError):
    """No tool of that name is visible to this client."""

    code = ErrorCode.NOT_FOUND


class ToolHeldBackError(ToolCallError):
    """A tool that this client could see was changed by its server, and its owner has yet to approve the change."""

    code = ErrorCode.HELD_BACK

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name!r} is held back until its owner approves a change of its server",
            hint="the owner sees why with: pml trust",
        )


class ReferenceNotFoundError(ToolCallError):
    """No result of this reference exists for this client: one answer for unknown, foreign and expired ones."""

    code = ErrorCode.NOT_FOUND

    def __init__(self, handle: str) -> None:
        super().__init__(
            f"no stored result {handle[:80]!r}",
            hint="it may have expired, or was never given to this client; run the call that made it again",
        )


class ToolForbiddenError(ToolCallError):
    """The tool is visible, but not callable this way."""

    code = ErrorCode.FORBIDDEN


class InvalidInputError(ToolCallError):
    """Arguments that the tool's input schema refuses; nothing was sent upstream."""

    code = ErrorCode.INVALID_INPUT


class BudgetExceededError(ToolCallError):
    """A request exceeds a limit, which the message names."""

    code = ErrorCode.BUDGET_EXCEEDED


class RateLimitedError(ToolCallError):
    """A limit of the gateway's owner has no room for this call now; nothing was sent."""

    code = ErrorCode.RATE_LIMITED
    retryable = True


class OverloadedError(GatewayError):
    """The gateway itself has too much to do right now; nothing was sent."""

    code = ErrorCode.BUSY
    retryable = True


class ReplicaUnavailableError(GatewayError):
    """The gateway that holds what a request is about does not answer."""

    code = ErrorCode.UPSTREAM_UNAVAILABLE

    def __init__(self, executed: Literal["no", "unknown"]) -> None:
        again = "send the request again" if executed == "no" else "look whether it had its effect before you repeat it"
        super().__init__(
            "the replica of the gateway that holds this does not answer", hint=again, details={"executed": executed}
        )
        self.retryable = executed == "no"


class UnrecordedError(GatewayError):
    """A request whose record is required, and could not be made."""

    def __init__(self, executed: Literal["no", "unknown"] = "unknown") -> None:
        super().__init__(
            "this request could not be recorded, and its record is required",
            hint="the owner of the gateway finds the reason in its log",
            details={"executed": executed},
        )


class ResultStoreError(GatewayError):
    """Stored results cannot be reached right now."""

    retryable = True


class SharedStateError(GatewayError):
    """State that several gateways share cannot be reached right now."""

    retryable = True


def error_message(error: BaseException) -> str:
    """Return what happened, for logs: without the remedy, which is for those who ask for something."""
    return error.message if isinstance(error, GatewayError) else str(error)


def innermost(error: BaseException) -> BaseException:
    """Return the first leaf of nested exception groups, which task groups wrap around every fault."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
