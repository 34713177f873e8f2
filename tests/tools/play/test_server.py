"""Who may use the page: hostile requests are refused before they reach it."""

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from podzero.tools.commands.listen_address import ListenAddress, RequestGuard

TOKEN = "secret-token"


@pytest.fixture(scope="module")
def server():
    """The module of the server; NiceGUI takes a second to import."""
    from podzero.tools.play import page as server

    return server


def guarded(server, host, *routes):
    """An application behind the guard."""
    app = Starlette(routes=routes)
    guard = RequestGuard(ListenAddress(host, 8000), "podzero play --web", server.MAX_BODY_BYTES, TOKEN)
    app.add_middleware(server.guarded, guard=guard)
    return app


async def page(request):
    return PlainTextResponse("the page")


async def echo(websocket):
    await websocket.accept()
    await websocket.send_text("connected")
    await websocket.close()


@pytest.fixture
def browser(server):
    """Makes a browser with an address; each has cookies of its own."""
    routes = Route("/", page, methods=["GET", "POST"]), WebSocketRoute("/ws", echo)
    app = guarded(server, "127.0.0.1", *routes)
    return lambda host="127.0.0.1:8000": TestClient(app, base_url=f"http://{host}")


def test_the_token_of_the_address_opens_the_page_and_becomes_a_cookie(browser, server):
    client = browser()
    first = client.get("/", params={"token": TOKEN})
    assert first.text == "the page"
    assert "HttpOnly" in first.headers["set-cookie"]
    assert "SameSite=Strict" in first.headers["set-cookie"]
    assert client.get("/").text == "the page"
    cookie = f"{server.COOKIE}={TOKEN}"
    with client.websocket_connect("/ws", headers={"host": "127.0.0.1:8000", "cookie": cookie}) as socket:
        assert socket.receive_text() == "connected"


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x"])
def test_without_the_token_nothing_is_answered(browser, token):
    refused = browser().get("/", params={"token": token})
    assert refused.status_code == 403
    assert "podzero play --web" in refused.text
    assert "set-cookie" not in refused.headers


def test_two_browsers_need_the_token_each(browser):
    assert browser().get("/", params={"token": TOKEN}).status_code == 200
    assert browser().get("/").status_code == 403
    assert browser().get("/", params={"token": TOKEN}).status_code == 200


def test_another_host_is_refused_although_it_knows_the_token(browser):
    """A page of another site whose name was rebound to this machine."""
    refused = browser("evil.example:8000").get("/", params={"token": TOKEN})
    assert refused.status_code == 421
    assert "127.0.0.1:8000" in refused.text


def test_a_socket_without_the_token_is_closed(browser):
    with pytest.raises((WebSocketDisconnect, WebSocketDenialResponse)):
        with browser().websocket_connect("/ws", headers={"host": "127.0.0.1:8000"}):
            pass


@pytest.mark.parametrize(
    "header",
    [
        {"content-length": "limit + 1"},
        {"content-length": "many"},
        {"content-length": "9" * 5000},
        {"transfer-encoding": "chunked"},
    ],
)
def test_large_bodies_and_those_of_unknown_length_are_refused(browser, server, header):
    if header.get("content-length") == "limit + 1":
        header = {"content-length": str(server.MAX_BODY_BYTES + 1)}
    client = browser()
    client.get("/", params={"token": TOKEN})
    assert client.post("/", content=b"x", headers=header).status_code == 413


def test_beyond_this_machine_any_name_is_answered_to_those_with_the_token(server):
    client = TestClient(guarded(server, "0.0.0.0", Route("/", page)), base_url="http://elsewhere.example:8000")
    assert client.get("/").status_code == 403
    assert client.get("/", params={"token": TOKEN}).text == "the page"
