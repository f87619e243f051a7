"""Access to the dashboard: Host allow-list, token and cookie, headers of every response, and the checks of a POST.

- DNS rebinding: a page of another site reaches this server under its own name. The Host header must be in `hosts`.
- Another user of the machine or of the network opens the port. A token is required, sent once; then a cookie.
- A page of another site sends a request with the cookie. The cookie is SameSite=Strict, and a POST is checked for its
  Origin and for a CSRF token.
- The name of a lock contains HTML or a script. The pages show text only, and the CSP refuses inline scripts.
- A page of another site shows the dashboard in a frame: frame-ancestors 'none'.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from urllib.parse import parse_qs

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.dashboard.pages import SIGN_IN, SIGNED_IN
from holdfast.errors import ConfigurationError

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
TOKEN_MIN = 16  # characters
_SIGN_IN_MAX = 4096  # bytes of a sign-in form

_HEADERS = {
    # No inline script or style, nothing from other sites, and no text that is parsed as HTML by a script.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with no-referrer, browsers send the sign-in form with `Origin: null`
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Access:
    """The decisions: which hosts, sessions and requests are accepted."""

    def __init__(self, token: str | None, hosts: Iterable[str]) -> None:
        if token is not None and len(token) < TOKEN_MIN:
            raise ConfigurationError(f"the token of the dashboard must have {TOKEN_MIN} characters or more")
        self._token = token
        self._hosts = {host.lower().strip("[]") for host in hosts}
        # Several processes of one program accept each other's sessions if they have the same token.
        self._key = secrets.token_bytes(32) if token is None else hashlib.sha256(b"holdfast" + token.encode()).digest()
        # Cookies of a host do not depend on the port, so each token has a cookie of its own.
        self.cookie = f"holdfast_{self._derive('name')[:8]}"
        self.session = self._derive("session")
        self.csrf_token = self._derive("csrf")

    def is_token(self, candidate: str) -> bool:
        return self._token is not None and _equal(candidate, self._token)

    def allows_host(self, header: str) -> bool:
        return "*" in self._hosts or _without_port(header.lower()) in self._hosts

    def allows(self, request: Request) -> bool:
        """Whether the request has the cookie or the token."""
        if self._token is None:
            return True
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self.is_token(credentials.strip())
        return _equal(request.cookies.get(self.cookie, ""), self.session)

    def refusal_of_change(self, request: Request) -> str | None:
        """The reason why a POST is refused; None if it is not. The token in a header does not replace these checks."""
        if not is_same_origin(request):
            return "the request comes from another site (header Origin)"
        if not _equal(request.headers.get("x-csrf-token", ""), self.csrf_token):
            return "the header X-CSRF-Token is missing or wrong: reload the page"
        return None

    def sign_in(self, request: Request, response: Response) -> Response:
        """Set the cookie. It ends with the browser, and with the token."""
        response.set_cookie(
            self.cookie,
            self.session,
            path=f"{request.scope.get('root_path', '')}/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return response

    def _derive(self, purpose: str) -> str:
        return hmac.new(self._key, purpose.encode(), hashlib.sha256).hexdigest()


class Guard:
    """ASGI middleware: refuses requests, signs in, and sets the headers of every response."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        response = await self._check(Request(scope, receive))
        await (response or self._app)(scope, receive, send_with_headers)

    async def _check(self, request: Request) -> Response | None:
        """The response to a request that the app must not see; None for the others."""
        access = self._access
        if not access.allows_host(request.headers.get("host", "")):
            return PlainTextResponse(
                "This name is not in the list of allowed hosts: use --allow-host, or hosts= of dashboard().\n", 421
            )
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        if path.startswith("/static/") and request.method in ("GET", "HEAD"):
            return None
        if path == "/" and request.method == "POST":
            return await self._sign_in(request)
        if path == "/" and access.is_token(request.query_params.get("token", "")):
            # The next request must come from this page, because a browser does not send a Strict cookie on a redirect
            # of a link from another site.
            return access.sign_in(request, HTMLResponse(SIGNED_IN))
        if access.allows(request):
            return None
        if "text/html" in request.headers.get("accept", "") and request.method == "GET":
            return HTMLResponse(SIGN_IN, 401)
        return PlainTextResponse("A token is required.\n", 401, {"www-authenticate": "Bearer"})

    async def _sign_in(self, request: Request) -> Response:
        if not is_same_origin(request):
            return PlainTextResponse("The request comes from another site.\n", 403)
        body = await read_body(request, _SIGN_IN_MAX)
        if body is None:
            return PlainTextResponse("The form is too long.\n", 413)
        token = parse_qs(body.decode(errors="replace")).get("token", [""])[0].strip()
        if not self._access.is_token(token):
            return HTMLResponse(SIGN_IN, 401)
        return self._access.sign_in(request, RedirectResponse("./", 303))


async def read_body(request: Request, most: int) -> bytes | None:
    """The body of a request; None if it has more bytes than this."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > most:
            return None
    return body


def is_same_origin(request: Request) -> bool:
    """Whether a page of this server sent the request. A proxy may have changed the scheme, so only the host counts."""
    scheme, _, host = request.headers.get("origin", "").partition("://")
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return False
    return scheme in ("http", "https") and host.lower() == request.headers.get("host", "").lower()


def _without_port(host: str) -> str:
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _equal(first: str, second: str) -> bool:
    return hmac.compare_digest(first.encode(), second.encode())
