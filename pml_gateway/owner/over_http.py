"""The owner over HTTP: approvals, listed and answered with the owner's token."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pml_gateway.config.load import LoadedSettings
from pml_gateway.errors import ErrorCode, error_json
from pml_gateway.hosts import KnownHosts
from pml_gateway.owner.answering import AskedOperation, answer_of
from pml_gateway.owner.approvals import ApprovalAnswer
from pml_gateway.owner.operations import ANSWER_APPROVAL, APPROVAL, APPROVALS
from pml_gateway.owner.process import ServingProcess
from pml_gateway.paths import Paths
from pml_gateway.policy.authentication import bearer
from pml_gateway.policy.owner_tokens import GUESS_SECONDS, OwnerTokens, TooManyGuessesError
from pml_gateway.serve.http.app import OwnerApps
from pml_gateway.serve.runtime import Runtime

OWNER_PATH = "/owner"

MAX_BODY = 16 * 1024
"""Maximum bytes of an answer to an approval: a passphrase is the longest part of it."""


class AnswerBody(BaseModel):
    """The body of an answer to an approval."""

    model_config = ConfigDict(extra="forbid", strict=True)

    answer: ApprovalAnswer
    scope: Literal["call", "arguments", "tool"] = Field(default="call", alias="for")
    passphrase: str = Field(default="", max_length=1000, repr=False)


def owner_apps(
    process_of: Callable[[Runtime], ServingProcess], paths: Paths, identity: str, load: Callable[[], LoadedSettings]
) -> OwnerApps:
    """Return what makes the applications for the owner, once the runtime of its process is open.

    Args:
        process_of: returns the process of the runtime.
        paths: the gateway's files.
        identity: the configuration file.
        load: loads the configuration as it is now.
    """

    def made(runtime: Runtime, tokens: OwnerTokens, hosts: KnownHosts) -> Mapping[str, ASGIApp]:
        process = process_of(runtime)
        apps: dict[str, ASGIApp] = {OWNER_PATH: OwnerEndpoint(process).app(tokens)}
        if runtime.gateway.state.settings.http.console:
            # By name, as the console imports this folder.
            served = import_module("pml_gateway.console.served")
            source = served.ProcessSource(process, runtime, paths, identity, load)
            apps |= served.console_apps(source, runtime, tokens, hosts)
        return apps

    return made


class OwnerEndpoint:
    """Approvals of one process as JSON."""

    def __init__(self, process: ServingProcess) -> None:
        self._process = process

    def app(self, tokens: OwnerTokens) -> ASGIApp:
        """Return the ASGI application, which is there only while the owner has a token."""
        routes = [
            Route(f"{OWNER_PATH}/approvals", self._list, methods=["GET"]),
            Route(f"{OWNER_PATH}/approvals/{{id}}", self._show, methods=["GET"]),
            Route(f"{OWNER_PATH}/approvals/{{id}}", self._answer, methods=["POST"]),
        ]
        refused: Mapping[Any, Any] = {404: _refusal, 405: _refusal, 413: _refusal}
        app = Starlette(routes=routes, middleware=[Middleware(TokenGuard, tokens=tokens)], exception_handlers=refused)
        app.router.redirect_slashes = False
        return app

    async def _list(self, _: Request) -> JSONResponse:
        answer = await self._asked(APPROVALS.name, {})
        if "error" in answer:
            return _error(answer["error"], 503 if answer["error"]["retryable"] else 500)
        return JSONResponse(answer["result"]["approvals"], headers=_PRIVATE)

    async def _show(self, request: Request) -> JSONResponse:
        return _found(await self._asked(APPROVAL.name, {"id": request.path_params["id"]}))

    async def _answer(self, request: Request) -> JSONResponse:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return _error(error_json(ErrorCode.INVALID_INPUT, "send it as application/json"), 415)
        try:
            given = AnswerBody.model_validate(json.loads(await _body(request)))
        except ClientDisconnect:
            return _error(error_json(ErrorCode.CANCELLED, "the request broke off"), 400)
        except ValidationError as error:
            # The error's own text would show the given values.
            first = error.errors(include_url=False, include_input=False)[0]
            what = f"{'.'.join(map(str, first['loc'])) or 'the body'}: {first['msg']}"
            return _error(error_json(ErrorCode.INVALID_INPUT, what, hint=_EXAMPLE), 400)
        except (ValueError, RecursionError):
            return _error(error_json(ErrorCode.INVALID_INPUT, "the body is not JSON", hint=_EXAMPLE), 400)
        return _found(await self._asked(ANSWER_APPROVAL.name, {"id": request.path_params["id"], **given.model_dump()}))

    async def _asked(self, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return await answer_of(AskedOperation(name=operation, arguments=arguments), self._process)


_EXAMPLE = 'for example {"answer": "approve", "for": "call"}'


class TokenGuard:
    """ASGI middleware that lets only the owner pass, by a token."""

    def __init__(self, app: ASGIApp, tokens: OwnerTokens) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        refusal = self._refusal(Request(scope)) if scope["type"] == "http" else None
        await (self._app if refusal is None else refusal)(scope, receive, send)

    def _refusal(self, request: Request) -> JSONResponse | None:
        if not self._tokens.in_force:
            hint = "pml keys add --owner makes a token of yours"
            return _error(error_json(ErrorCode.NOT_FOUND, "nothing is served here", hint=hint), 404)
        token = bearer(request.headers.get("authorization", ""))
        try:
            if token and self._tokens.identify(token, request.client.host if request.client else "") is not None:
                return None
        except TooManyGuessesError as error:
            return _error(error.as_json(), 429, {"Retry-After": f"{GUESS_SECONDS:.0f}"})
        challenge = {"WWW-Authenticate": 'Bearer realm="pml-gateway owner"'}
        return _error(error_json(ErrorCode.FORBIDDEN, "a token of the owner is required"), 401, challenge)


async def _body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise HTTPException(413, f"at most {MAX_BODY // 1024} KiB are read")
    return body


def _found(answer: Mapping[str, Any]) -> JSONResponse:
    """Return an approval, or the reason why there is none."""
    if "error" in answer:
        return _error(answer["error"], 503 if answer["error"]["retryable"] else 403)
    found = answer["result"]["approval"]
    if found is None:
        hint = f"GET {OWNER_PATH}/approvals has the ids"
        return _error(error_json(ErrorCode.NOT_FOUND, "no such approval is asked for", hint=hint), 404)
    return JSONResponse(found, headers=_PRIVATE)


def _error(error: Mapping[str, Any], status: int, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": error}, status, {**_PRIVATE, **(headers or {})})


def _refusal(_: Request, raised: HTTPException) -> JSONResponse:
    code = ErrorCode.NOT_FOUND if raised.status_code == 404 else ErrorCode.INVALID_INPUT
    return _error(error_json(code, str(raised.detail)), raised.status_code, raised.headers)


_PRIVATE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
