"""What every request passes first: who asks, from which page, by which name, and how many at once."""

import hashlib
import hmac
import ipaddress
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

from firstpage.errors import UserError
from firstpage.serve.metrics import Metrics

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_HEADERS, MAX_HEADER_BYTES = 100, 2**14
MAX_ACTIVE = 256  # requests at once, those that are still being sent included
MIN_TOKEN = 8
FAILED = "the server failed; its log says why"
METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")

# Nothing but files of this server runs or is shown, nobody may frame the page, and no address leaks.
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "same-origin",  # with no-referrer, forms of the page itself would have no origin
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}

log = logging.getLogger("firstpage.serve")


class Refusal(Exception):  # noqa: N818 - an answer, not an error of the server
    """A request that is answered with an error.

    Args:
        status: The HTTP status.
        message: One line for the user.
        headers: Further headers of the answer.

    >>> Refusal(404, "no such image").status
    404
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})


class Gate:
    """The token that a server may ask for: as a bearer token, or as a cookie that the page has got for it.

    Args:
        token: The token, of at least 8 characters.

    Raises:
        UserError: It is shorter, or cannot be sent in a header.

    >>> gate = Gate("correct horse")
    >>> gate.admits({"authorization": "Bearer correct horse"}), gate.admits({"authorization": "Bearer x"})
    (True, False)
    >>> Gate("short")
    Traceback (most recent call last):
    firstpage.errors.UserError: token: has 5 characters; give at least 8
    """

    def __init__(self, token: str) -> None:
        if len(token) < MIN_TOKEN:
            raise UserError(f"token: has {len(token)} characters; give at least {MIN_TOKEN}")
        if not token.isascii() or not token.isprintable() or token != token.strip():
            raise UserError("token: use printable ASCII characters, without spaces around them")
        self._token = token.encode()
        self._value = hmac.new(self._token, b"firstpage cookie", hashlib.sha256).hexdigest()
        # Browsers share cookies among all ports of a machine: servers with other tokens have other names.
        self.cookie = f"firstpage-{self._value[-8:]}"

    def is_right(self, token: str) -> bool:
        """Return whether this is the token, in a time that does not depend on how much of it is right."""
        return hmac.compare_digest(token.encode("utf-8", "replace"), self._token)

    def admits(self, headers: Mapping[str, str]) -> bool:
        """Return whether a request has the token or the cookie."""
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self.is_right(token.strip()):
            return True
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return False
        return found is not None and hmac.compare_digest(found.value.encode(), self._value.encode())

    def set_cookie(self) -> str:
        """Return the header for a cookie that scripts cannot read and other sites not use."""
        return f"{self.cookie}={self._value}; Path=/; HttpOnly; SameSite=Strict; Max-Age=2592000"


class Guard:
    """The outermost layer of the server, an ASGI application around another.

    It refuses requests with too many headers, under a name that is not this server's (DNS rebinding), from
    other sites' pages, without the token, or while too many others run. Every answer gets security headers,
    every failure becomes one line, and all are counted.

    Args:
        app: The application.
        gate: The token, if one is asked for.
        hosts: Names of the server, besides `localhost` and every address in digits.
        metrics: Counts the requests.
        login: The page that asks for the token.

    >>> Guard(None, hosts=["shop.local"]).knows("shop.local:8000"), Guard(None).knows("evil.example")
    (True, False)
    """

    def __init__(
        self,
        app: App,
        *,
        gate: Gate | None = None,
        hosts: Iterable[str] = (),
        metrics: Metrics | None = None,
        login: bytes = b"",
    ) -> None:
        self.app, self.gate, self.login = app, gate, login
        self.hosts = {"localhost", *(host.lower() for host in hosts)}
        self.metrics = metrics or Metrics()
        self.active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        begin, status = time.perf_counter(), 0

        async def answer(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        self.active += 1
        try:
            await self._handle(scope, receive, answer)
        except Refusal as refusal:
            if not status:
                await send_error(answer, refusal)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            if not status:
                await send_error(answer, Refusal(500, FAILED))
        finally:
            self.active -= 1
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in METHODS else "other"
            self.metrics.observe(route, method, status or 500, time.perf_counter() - begin)

    async def _handle(self, scope: Scope, receive: Receive, answer: Send) -> None:
        headers = self._read_headers(scope["headers"])
        path, method = scope["path"], scope["method"]
        if not self.knows(headers.get("host", "")):
            raise Refusal(421, "this server does not have that name; --allow-host gives it one")
        _check_site(headers, method, path)
        if self.active > MAX_ACTIVE:
            raise Refusal(503, "too many requests at once; try again in a second", {"retry-after": "1"})
        # What asks for the token, and the files that it consists of, need none.
        if self.gate and path not in ("/healthz", "/login") and not path.startswith("/static/"):
            given = parse_qs(scope["query_string"].decode("latin-1")).get("token") if path == "/" else None
            if given and method == "GET" and self.gate.is_right(given[0]):
                raise Refusal(303, "", {"location": "/", "set-cookie": self.gate.set_cookie()})
            if not self.gate.admits(headers):
                if path == "/":
                    await _send(answer, 401, self.login, {"content-type": "text/html; charset=utf-8"})
                    return
                raise Refusal(401, "give the token of this server", {"www-authenticate": "Bearer"})
        await self.app(scope, receive, answer)

    def _read_headers(self, raw: list[tuple[bytes, bytes]]) -> dict[str, str]:
        if len(raw) > MAX_HEADERS or sum(len(name) + len(value) for name, value in raw) > MAX_HEADER_BYTES:
            raise Refusal(431, f"more than {MAX_HEADERS} headers, or {MAX_HEADER_BYTES:,} bytes of them")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in raw}
        if sum(name == b"host" for name, _ in raw) > 1:
            raise Refusal(400, "more than one header host")
        return headers

    def knows(self, host: str) -> bool:
        """Return whether a request's header `host` names this server.

        A page of another site reaches this server under a name of its own, never under an address in digits.
        """
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
            if name in self.hosts:
                return True
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _check_site(headers: Mapping[str, str], method: str, path: str) -> None:
    """Refuse what a page of another site asks for; only a link to the page itself may come from there."""
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        origin = headers.get("origin")
        if origin is None or method in ("GET", "HEAD"):
            return
        if origin != "null" and urlsplit(origin).netloc == headers.get("host"):
            return
    elif method == "GET" and path == "/":
        return
    raise Refusal(403, "asked for by a page of another site")


async def send_error(send: Send, refusal: Refusal) -> None:
    """Send a refusal as JSON: `{"error": "…"}`.

    >>> send_error.__name__
    'send_error'
    """
    body = b"" if refusal.status == 303 else json.dumps({"error": str(refusal)}).encode()
    await _send(send, refusal.status, body, {"content-type": "application/json"} | refusal.headers)


async def _send(send: Send, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    named = {"content-length": str(len(body)), "cache-control": "no-store", **headers}
    raw = [(name.encode(), value.encode("latin-1", "replace")) for name, value in named.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
