"""Access: who may open the app where strangers could reach it. In front of every path, the WebSocket too.

EXPLORER_ACCESS: "token" (one token, shown once in the log), "proxy" (an identity-aware proxy asked already), "open".
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl, urlencode

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

COOKIE = "explorer_access"
DOOR = "/access"
HEALTH = "/_stcore/health"  # a load balancer asks it, and learns nothing
PROXY_HEADER = b"x-goog-iap-jwt-assertion"
TOKEN_BYTES = 24
MOST_BODY_BYTES = 4096
SHORTEST_TOKEN = 16

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Attention Explorer</title>
<meta name="viewport" content="width=device-width">
<style>
:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 sans-serif; max-width: 30rem; margin: 15vh auto; padding: 0 1rem }}
input, button {{ font: inherit; padding: .4rem .6rem }}
input {{ width: 100%; box-sizing: border-box; margin: .3rem 0 .8rem }}
</style>
<h1>Attention Explorer</h1>
<p role="status">{message}</p>
<form method="post" action="/access">
<label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<input name="next" type="hidden" value="{next}">
<button>Open</button>
</form></html>"""
ASKS = "This server asks for its token. It is in the log of the process, once, where it started."
WRONG = "That is not this server's token."


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How visitors come in. token is "" unless the way is "token"."""

    way: Literal["token", "proxy", "open"]
    token: str = ""
    is_new: bool = False  # made here, so the log must show it

    def __post_init__(self) -> None:
        if self.way == "token" and len(self.token) < SHORTEST_TOKEN:
            raise ValueError(f"EXPLORER_TOKEN needs {SHORTEST_TOKEN} characters at least, got {len(self.token)}")

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Access:
        """From EXPLORER_ACCESS (default: token) and EXPLORER_TOKEN (default: a new one)."""
        way = environment.get("EXPLORER_ACCESS", "token")
        if way == "token":
            given = environment.get("EXPLORER_TOKEN", "")
            return cls(way="token", token=given or secrets.token_urlsafe(TOKEN_BYTES), is_new=not given)
        if way == "proxy":
            return cls(way="proxy")
        if way == "open":
            return cls(way="open")
        raise ValueError(f"EXPLORER_ACCESS must be token, proxy or open, got {way!r}")

    @property
    def pass_(self) -> str:
        """What the cookie holds: shows that its owner knew the token, without being it."""
        return hashlib.sha256(b"explorer access " + self.token.encode()).hexdigest()

    def knows(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self.token.encode())


class Gate:
    """ASGI middleware: without the token's cookie there is only the door; in the proxy's way, only what it signed."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or self.access.way == "open" or scope["path"] == HEALTH:
            await self.app(scope, receive, send)
        elif self.access.way == "proxy":
            # The proxy's network policy lets nobody else through; this catches one that was left out.
            if any(name == PROXY_HEADER for name, _ in scope["headers"]):
                await self.app(scope, receive, send)
            else:
                await _refuse(scope, receive, send, "This address answers behind its identity-aware proxy only.", 403)
        elif scope["type"] == "http" and scope["path"] == DOOR and scope["method"] == "POST":
            form = await _form(receive)
            await self._enter(scope, receive, send, form.get("token", ""), form.get("next", "/"))
        elif self._is_known(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "http" and (query := dict(parse_qsl(scope["query_string"].decode("latin-1")))).get(
            "token"
        ):
            given = query.pop("token")
            rest = f"?{urlencode(query)}" if query else ""
            await self._enter(scope, receive, send, given, scope["path"] + rest)
        else:
            await self._ask(scope, receive, send, ASKS)

    def _is_known(self, scope: Scope) -> bool:
        jar = SimpleCookie()
        for name, value in scope["headers"]:
            if name == b"cookie":
                try:
                    jar.load(value.decode("latin-1"))
                except CookieError:
                    return False
        return COOKIE in jar and hmac.compare_digest(jar[COOKIE].value.encode(), self.access.pass_.encode())

    async def _enter(self, scope: Scope, receive: Receive, send: Send, token: str, target: str) -> None:
        from starlette.responses import RedirectResponse

        if not self.access.knows(token):
            await self._ask(scope, receive, send, WRONG)
            return
        # A path of this server and nothing else: // and /\ would lead to another.
        inside = target if target.startswith("/") and target[1:2] not in ("/", "\\") else "/"
        answer = RedirectResponse(inside, status_code=303, headers={"cache-control": "no-store"})
        is_https = (b"x-forwarded-proto", b"https") in scope["headers"] or scope["scheme"] == "https"
        answer.set_cookie(COOKIE, self.access.pass_, httponly=True, samesite="lax", secure=is_https)
        await answer(scope, receive, send)

    async def _ask(self, scope: Scope, receive: Receive, send: Send, message: str) -> None:
        path = scope["path"] if scope["path"] != DOOR else "/"
        query = scope["query_string"].decode("latin-1")
        is_page = not path.startswith("/_stcore") and "token=" not in query
        target = f"{path}?{query}" if is_page and query else path if is_page else "/"
        await _refuse(scope, receive, send, PAGE.format(message=escape(message), next=escape(target)), 401)


async def _refuse(scope: Scope, receive: Receive, send: Send, text: str, status: int) -> None:
    from starlette.responses import HTMLResponse
    from starlette.websockets import WebSocketClose

    if scope["type"] == "websocket":
        await WebSocketClose(code=1008)(scope, receive, send)
    else:
        await HTMLResponse(text, status_code=status, headers={"cache-control": "no-store"})(scope, receive, send)


async def _form(receive: Receive) -> dict[str, str]:
    body, more = b"", True
    while more and len(body) <= MOST_BODY_BYTES:
        message: Any = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return dict(parse_qsl(body[:MOST_BODY_BYTES].decode("latin-1")))
