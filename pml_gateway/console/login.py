"""The page that asks for the owner's token, in front of a console that is served over a network."""

from __future__ import annotations

from jinja2 import Environment
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from pml_gateway.console.access import LOGIN_PATH, LOGIN_PATHS, ROOT, ConsoleAccess
from pml_gateway.console.forms import FormError, read_fields
from pml_gateway.console.static_files import static_file
from pml_gateway.policy.owner_tokens import GUESS_SECONDS, OwnerTokens, TooManyGuessesError

FIELD = "owner"
"""The field of the token."""


class LoginPage:
    """The page at the root of the console, for a browser without a session."""

    def __init__(self, access: ConsoleAccess, tokens: OwnerTokens, templates: Environment) -> None:
        self._access = access
        self._tokens = tokens
        self._templates = templates

    def app(self) -> Starlette:
        """Return the ASGI application; the guard of the console decides what reaches it."""
        static = sorted(LOGIN_PATHS - {LOGIN_PATH})
        routes = [
            Route(ROOT, self._ask),
            Route(f"{ROOT}/", self._ask),
            Route(LOGIN_PATH, self._log_in, methods=["POST"]),
            *(Route(path, self._static) for path in static),
        ]
        app = Starlette(routes=routes)
        app.router.redirect_slashes = False
        return app

    async def _ask(self, _: Request) -> Response:
        return self._rendered("", 200)

    async def _static(self, request: Request) -> Response:
        return static_file(request.url.path.rpartition("/")[2])

    async def _log_in(self, request: Request) -> Response:
        """Open a session for the holder of a token."""
        try:
            token = (await read_fields(request)).get(FIELD, "").strip()
            key_id = self._tokens.identify(token, request.client.host if request.client else "")
        except TooManyGuessesError as error:
            refused = self._rendered(f"{error.message}; {error.hint}.", 429)
            refused.headers["Retry-After"] = f"{GUESS_SECONDS:.0f}"
            return refused
        except FormError as error:
            return self._rendered(str(error), error.status)
        if key_id is None:
            return self._rendered("This is no token of yours that is in force.", 403)
        answer = RedirectResponse(f"{self._access.root}/", 303)
        # The gateway itself speaks no TLS; the browser says by the origin if a proxy in front of it does.
        is_secure = request.headers["origin"].casefold().startswith("https:")
        return self._access.with_session(answer, key_id, is_secure=is_secure)

    def _rendered(self, problem: str, status: int) -> Response:
        shown = {"problem": problem, "door": ROOT, "field": FIELD, "has_tokens": bool(self._tokens.in_force)}
        return HTMLResponse(self._templates.get_template("login.html").render(shown), status)
