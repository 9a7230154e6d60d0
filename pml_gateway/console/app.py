"""The web application of the console: routes, templates, and the stream that says when a page is out of date."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict
from typing import Any
from urllib.parse import parse_qsl, urlencode

from cachetools import LRUCache, TTLCache
from jinja2 import Environment, PackageLoader, StrictUndefined, Undefined
from starlette.applications import Starlette
from starlette.background import BackgroundTask, BackgroundTasks
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from pml_gateway.config.servers import LOOPBACK_HOSTS
from pml_gateway.console.access import ConsoleAccess, ConsoleGuard
from pml_gateway.console.change import ChangeRequest, MadeChange
from pml_gateway.console.changes import CHANGES
from pml_gateway.console.forms import BACK, HELD, SEEN, FormError, checked_fields, read_form
from pml_gateway.console.login import LoginPage
from pml_gateway.console.logins import RunningLogins
from pml_gateway.console.pages import PAGES
from pml_gateway.console.recent import RecentFigures
from pml_gateway.console.request import PageRequest
from pml_gateway.console.source import GatewaySource
from pml_gateway.console.static_files import STATIC, static_file
from pml_gateway.console.watch import ConsoleWatch
from pml_gateway.errors import GatewayError
from pml_gateway.hosts import KnownHosts
from pml_gateway.setup.change import ChangedMeanwhileError
from pml_gateway.text import counted, escaped, span
from pml_gateway.types import JsonObject

MAX_STREAMS = 20
"""Maximum number of open pages that follow the gateway; further ones show the state at which they were opened."""

MAX_MADE = 50
"""Changes whose outcome and undo are shown if their page is loaded again."""

HELD_SECONDS = 600.0
"""Seconds in which a change that was given secrets can be confirmed."""

MAX_BACK = 2000
"""Characters of the address of a page to return to."""

MADE = "made"
"""The parameter of a page that says which change led to it."""


class Console:
    """Pages about one gateway.

    Args:
        source: the gateway.
        access: who may see them.
        hosts: the names under which they may be asked for.
        logins: runs logins for browsers of this machine; None if browsers may be elsewhere.
    """

    def __init__(
        self,
        source: GatewaySource,
        access: ConsoleAccess,
        hosts: KnownHosts | None = None,
        logins: RunningLogins | None = None,
    ) -> None:
        self._source = source
        self._logins = logins
        self._access = access
        self._hosts = hosts or KnownHosts(LOOPBACK_HOSTS)
        self._streams = 0
        self._figures = RecentFigures(source.paths.activity_file, source.identity)
        self._watch = ConsoleWatch(source, self._figures)
        self._templates = Environment(
            loader=PackageLoader("pml_gateway.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            finalize=_readable,
        )
        filters: dict[str, Callable[[Any], Any]] = {
            "span": span,
            "size": _size,
            "number": lambda number: f"{number:,}",
            "blank": _blank,
            "clock": _clock,
            "moment": _moment,
            "milliseconds": _milliseconds,
        }
        self._templates.filters |= filters
        self._templates.globals |= {
            "counted": counted,
            "root": access.root,
            "form_token": access.form_token,
            "changes": CHANGES,
            "logins": logins,
        }
        self._held: TTLCache[str, dict[str, str]] = TTLCache(MAX_MADE, HELD_SECONDS)
        self._made: LRUCache[str, tuple[MadeChange, str]] = LRUCache(MAX_MADE)

    def app(self) -> Starlette:
        """Return the ASGI application, with the guard in front of it."""
        routes = [
            Route("/", self._page, name="overview"),
            Route("/events", self._events),
            Route("/static/{name}", self._static),
            Route("/do/{change}", self._change, methods=["POST"]),
            Route("/{page}.json", self._json),
            Route("/{page}", self._page),
        ]
        tokens, login = self._access.tokens, None
        if tokens is not None:
            login = LoginPage(self._access, tokens, self._templates).app()
        guard = Middleware(ConsoleGuard, access=self._access, hosts=self._hosts, login=login)
        app = Starlette(routes=routes, middleware=[guard], exception_handlers={404: self._not_found})
        app.router.redirect_slashes = False
        return app

    async def _not_found(self, request: Request, _: Exception) -> Response:
        return self._error(GatewayError(f"no page {request.scope['path'].removeprefix(self._access.root)!r}"), 404)

    async def _page(self, request: Request) -> Response:
        name = request.path_params.get("page", "overview")
        if name not in PAGES:
            raise HTTPException(404)
        try:
            shown, later = await self._shown(name, request)
        except GatewayError as error:
            return self._error(error, 502)
        query = dict(request.query_params)
        made = self._made.get(query.pop(MADE, ""))
        answer = self._rendered(f"{name}.html", shown | {"page": name, "query": query, "made": made})
        answer.background = later
        return answer

    async def _json(self, request: Request) -> Response:
        name = request.path_params["page"]
        if name not in PAGES:
            return JSONResponse({"error": {"message": f"no page {name!r}"}}, 404)
        try:
            shown, later = await self._shown(name, request)
        except GatewayError as error:
            return JSONResponse({"error": error.as_json()}, 502)
        return JSONResponse(json.loads(json.dumps(shown, default=asdict)), background=later)

    async def _shown(self, name: str, request: Request) -> tuple[JsonObject, BackgroundTasks]:
        """Return what a page shows, and the work that is done once it was sent."""
        asked = PageRequest(self._source, request.query_params, self._figures)
        shown = await PAGES[name](asked)
        return shown, BackgroundTasks([BackgroundTask(work) for work in asked.later])

    async def _change(self, request: Request) -> Response:
        """Show what a form would change; make the change once the same is confirmed."""
        name = request.path_params["change"]
        if name not in CHANGES:
            raise HTTPException(404)
        change = CHANGES[name]
        try:
            form = await read_form(request, self._access.form_token)
        except FormError as error:
            return self._error(error, error.status)
        shown: JsonObject = {"page": change.page, "query": {}, "name": name, "change": change}
        shown |= {
            "back": _back(form.get(BACK, ""), change.page),
            "error": None,
            "plan": None,
            "is_stale": False,
            "held": "",
        }
        form |= self._held.pop(form.get(HELD, ""), {})
        shown["given"] = change.shown_again(form)
        try:
            asked = self._asked(checked_fields(change.fields, form, change.more))
            plan = await change.plan(asked)
            if plan.asks and not plan.made_already and form.get(SEEN) != plan.digest:
                held = self._hold({name: form[name] for name in change.secrets & form.keys()})
                return self._rendered("change.html", shown | {"plan": plan, "is_stale": SEEN in form, "held": held})
            made = MadeChange(plan.made_already) if plan.made_already else await plan.make()
        except ChangedMeanwhileError as error:
            return self._rendered("change.html", shown | {"error": error, "is_stale": True}, 409)
        except GatewayError as error:
            return self._rendered("change.html", shown | {"error": error}, 400)
        id_ = secrets.token_urlsafe(8)
        self._made[id_] = made, await self._undo_digest(made)
        path, _, query = shown["back"].partition("?")
        return RedirectResponse(f"{self._access.root}/{path}?{urlencode([*parse_qsl(query), (MADE, id_)])}", 303)

    def _hold(self, secret_values: dict[str, str]) -> str:
        """Keep what no page shows until a change is confirmed; return its id."""
        if not secret_values:
            return ""
        id_ = secrets.token_urlsafe(16)
        self._held[id_] = secret_values
        return id_

    def _asked(self, values: Mapping[str, str]) -> ChangeRequest:
        return ChangeRequest(self._source, values, self._logins)

    async def _undo_digest(self, made: MadeChange) -> str:
        """Return what is agreed to by asking for an undo right after a change, which then needs no question."""
        if made.undo is None:
            return ""
        try:
            return (await CHANGES[made.undo.change].plan(self._asked(made.undo.values))).digest
        except GatewayError:
            return ""

    def _error(self, error: GatewayError, status: int) -> Response:
        return self._rendered("error.html", {"page": "", "error": error, "query": {}}, status)

    def _rendered(self, template: str, shown: JsonObject, status: int = 200) -> Response:
        here = "?".join(filter(None, (shown["page"] or "overview", urlencode(shown["query"]))))
        return HTMLResponse(self._templates.get_template(template).render({"made": None, "here": here} | shown), status)

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            raise HTTPException(404)
        return static_file(name)

    async def _events(self, request: Request) -> Response:
        if self._streams >= MAX_STREAMS:
            return Response("too many open pages", 503)
        return StreamingResponse(self._changes(request), media_type="text/event-stream")

    async def _changes(self, request: Request) -> AsyncIterator[str]:
        """Yield an event for each change, with its kinds, until the page is closed."""
        self._streams += 1
        try:
            yield "retry: 1000\n\n"
            async for changed in self._watch.follow():
                if await request.is_disconnected() or not self._access.has_session(request):
                    return
                # A comment shows that this process lives.
                yield f"data: {' '.join(changed)}\n\n" if changed else ":\n\n"
        finally:
            self._streams -= 1


def _back(given: str, otherwise: str) -> str:
    """Return the page to return to, as a path with its query below the root."""
    path, _, query = given.partition("?")
    if path not in PAGES or len(given) > MAX_BACK:
        return otherwise
    return "?".join(filter(None, (path, urlencode(parse_qsl(query)))))


def _readable(value: Any) -> Any:
    """Return a text with escapes for what no reader sees, as characters that reverse the direction of a line."""
    return escaped(value, but="\r\n\t") if type(value) is str else value


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _moment(at: float) -> str:
    """Return the time, with the day unless it is today."""
    then, today = time.localtime(at), time.localtime()
    return time.strftime("%H:%M:%S" if then[:3] == today[:3] else "%m-%d %H:%M:%S", then)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"


def _size(count: int | None) -> str:
    return "" if count is None else f"{count / 2**20:,.0f} MiB"


def _blank(value: Any) -> Any:
    """Return a value that may be missing, which shows nothing then."""
    return "" if value is None or isinstance(value, Undefined) else value
