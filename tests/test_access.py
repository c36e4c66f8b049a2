"""The gate: nothing of the app without the token, and nowhere else with it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest

from explorer.access import Access, Gate

TOKEN = "a-token-of-sixteen-and-more"


@dataclass
class Answer:
    """What came back: of the app behind the gate, or of the gate."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    reached_the_app: bool = False
    closed: int | None = None


def call(
    access: Access,
    path: str = "/",
    *,
    query: str = "",
    headers: Mapping[str, str] | None = None,
    kind: str = "http",
    form: Mapping[str, str] | None = None,
) -> Answer:
    answer = Answer()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        answer.reached_the_app = True

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": urlencode(form or {}).encode(), "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        elif message["type"] == "http.response.body":
            answer.body += message.get("body", b"").decode()
        elif message["type"] == "websocket.close":
            answer.closed = message["code"]

    scope = {
        "type": kind,
        "path": path,
        "method": "POST" if form is not None else "GET",
        "scheme": "http",
        "query_string": query.encode(),
        "headers": [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()],
    }
    asyncio.run(Gate(app, access)(scope, receive, send))
    return answer


@pytest.fixture
def access() -> Access:
    return Access.of({"EXPLORER_TOKEN": TOKEN})


def cookie_of(answer: Answer) -> dict[str, str]:
    return {"Cookie": answer.headers["set-cookie"].partition(";")[0]}


def test_without_the_token_there_is_only_the_door(access: Access) -> None:
    for path in ("/", "/latency", "/static/js/index.js", "/_stcore/host-config", "/media/x.png", "/metrics"):
        answer = call(access, path)
        assert not answer.reached_the_app
        assert answer.status == 401
        assert TOKEN not in answer.body
        assert 'name="token"' in answer.body


def test_the_websocket_is_behind_the_gate_too(access: Access) -> None:
    answer = call(access, "/_stcore/stream", kind="websocket")
    assert not answer.reached_the_app
    assert answer.closed == 1008


def test_health_is_open_for_the_load_balancer(access: Access) -> None:
    assert call(access, "/_stcore/health").reached_the_app


def test_a_link_with_the_token_lets_in_and_leaves_the_address(access: Access) -> None:
    answer = call(access, "/latency", query=f"q_len=64&token={TOKEN}&dtype=float32")
    assert (answer.status, answer.headers["location"]) == (303, "/latency?q_len=64&dtype=float32")
    assert re.search(r"HttpOnly; Path=/; SameSite=lax", answer.headers["set-cookie"])
    assert TOKEN not in answer.headers["set-cookie"]
    for kind in ("http", "websocket"):
        assert call(access, "/_stcore/stream", kind=kind, headers=cookie_of(answer)).reached_the_app


def test_the_form_lets_in_and_returns_to_the_page(access: Access) -> None:
    answer = call(access, "/access", form={"token": TOKEN, "next": "/latency?q_len=64"})
    assert (answer.status, answer.headers["location"]) == (303, "/latency?q_len=64")
    assert call(access, headers=cookie_of(answer)).reached_the_app


@pytest.mark.parametrize("target", ["//elsewhere.example", "/\\elsewhere.example", "https://elsewhere.example", ""])
def test_the_door_leads_to_this_server_only(access: Access, target: str) -> None:
    assert call(access, "/access", form={"token": TOKEN, "next": target}).headers["location"] == "/"


@pytest.mark.parametrize("wrong", ["", "x", TOKEN[:-1], TOKEN + "x"])
def test_a_wrong_token_is_refused(access: Access, wrong: str) -> None:
    answer = call(access, "/access", form={"token": wrong})
    assert answer.status == 401
    assert "not this server's token" in unescape(answer.body)
    assert "set-cookie" not in answer.headers
    assert not call(access, query=f"token={wrong}").reached_the_app


@pytest.mark.parametrize(
    "cookie", ["explorer_access=", f"explorer_access={TOKEN}", "explorer_access=\x80", "a=b", ";;=,"]
)
def test_a_made_up_cookie_is_refused(access: Access, cookie: str) -> None:
    assert not call(access, headers={"Cookie": cookie}).reached_the_app


def test_another_server_s_cookie_is_refused(access: Access) -> None:
    other = Access.of({})
    answer = call(other, query=f"token={other.token}")
    assert not call(access, headers=cookie_of(answer)).reached_the_app


def test_cookie_is_secure_behind_https(access: Access) -> None:
    answer = call(access, query=f"token={TOKEN}", headers={"X-Forwarded-Proto": "https"})
    assert "Secure" in answer.headers["set-cookie"]


def test_what_was_asked_for_is_escaped(access: Access) -> None:
    answer = call(access, '/"><script>', query='x="><script>')
    assert "<script" not in answer.body


def test_a_long_form_is_not_read_to_its_end(access: Access) -> None:
    assert call(access, "/access", form={"x": "y" * 100_000, "token": TOKEN}).status == 401


def test_a_new_token_is_long_and_to_be_shown_once() -> None:
    first, second = Access.of({}), Access.of({})
    assert first.is_new
    assert first.token != second.token
    assert len(first.token) >= 32
    assert not Access.of({"EXPLORER_TOKEN": TOKEN}).is_new


def test_proxy_s_way_needs_what_the_proxy_signs() -> None:
    access = Access.of({"EXPLORER_ACCESS": "proxy"})
    assert call(access, headers={"X-Goog-IAP-JWT-Assertion": "e30.e30.x"}).reached_the_app
    refused = call(access)
    assert (refused.status, refused.reached_the_app) == (403, False)
    assert call(access, kind="websocket").closed == 1008


def test_open_must_be_said() -> None:
    assert call(Access.of({"EXPLORER_ACCESS": "open"})).reached_the_app


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"EXPLORER_ACCESS": "nobody"}, r"must be token, proxy or open, got 'nobody'"),
        ({"EXPLORER_TOKEN": "short"}, r"needs 16 characters at least, got 5"),
    ],
)
def test_a_wrong_setting_is_told(environment: dict[str, str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Access.of(environment)
