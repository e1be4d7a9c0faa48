"""The server process: its socket, its limits, and how it ends."""

import asyncio
import os
import socket
import threading
import time
import warnings
import webbrowser
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from firstpage._terminal import print_text
from firstpage.errors import UserError
from firstpage.serve.app import create_app

HEADER_SECONDS = 20  # in which the headers of a request have to come
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class _Protocol(H11Protocol):
    """HTTP/1.1 whose clients may not take forever to send their headers."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # An answer has two parts, and the second would wait 40 ms until the client has confirmed the first.
        # asyncio sees to that only for sockets that it has made itself.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._patience = self.loop.call_later(HEADER_SECONDS, self._end_if_silent)

    def _end_if_silent(self) -> None:
        """Close a connection that has sent no complete request for so long, and look again later."""
        idle = self.cycle is None or self.cycle.response_complete
        if idle and time.monotonic() - getattr(self, "_last", 0.0) > HEADER_SECONDS:
            self.transport.close()
        else:
            self._patience = self.loop.call_later(HEADER_SECONDS, self._end_if_silent)

    def on_response_complete(self) -> None:
        self._last = time.monotonic()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience.cancel()
        super().connection_lost(exc)


def run_server(
    folders: Sequence[str | os.PathLike[str]],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    hosts: Iterable[str] = (),
    open_browser: bool = False,
) -> None:
    """Serve the search page until the process is stopped.

    Args:
        folders: Of one index, or of two to compare.
        host: The address to listen at. The default can be reached from this machine only.
        port: The port; 0 takes a free one.
        token: What clients have to give. Defaults to none.
        hosts: Names of the server, besides `localhost` and addresses in digits.
        open_browser: Also open the page.

    Raises:
        UserError: An index is damaged, the token is too short, or the port is in use.

    >>> run_server(["nowhere"])
    Traceback (most recent call last):
    FileNotFoundError: nowhere: no index there; firstpage index build makes one
    """
    names = {*hosts} | ({host} if not host.replace(".", "").isdecimal() else set())
    app = create_app(folders, token=token, hosts=names)
    listening = open_socket(host, port)
    port = listening.getsockname()[1]
    if host not in LOOPBACK and token is None:
        warnings.warn(f"everyone who reaches {host}:{port} can search and mark: give a --token", stacklevel=2)
    shown = "127.0.0.1" if host in ("", "0.0.0.0", "::") else host
    address = f"http://[{shown}]:{port}/" if ":" in shown else f"http://{shown}:{port}/"
    print_text(f"{address}  (Ctrl-C ends it)")
    server = uvicorn.Server(configure(app))
    if open_browser:
        threading.Thread(target=_open_when_ready, args=(server, address), daemon=True).start()
    with suppress(KeyboardInterrupt):  # how it is meant to end
        server.run([listening])


def configure(app: Any) -> uvicorn.Config:  # noqa: ANN401 - any ASGI application
    """Return the settings of the server: HTTP/1.1 alone, little patience, and no word about itself.

    >>> configure(None).server_header
    False
    """
    return uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=3,
        h11_max_incomplete_event_size=2**14,
        backlog=512,
    )


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        UserError: The address is not one of this machine, or the port is in use.

    >>> open_socket("127.0.0.1", 0).getsockname()[0]
    '127.0.0.1'
    """
    if not 0 <= port <= 65535:
        raise UserError(f"--port {port}: must be in 0..65535")
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=512)
    except OSError as error:
        number = error.errno or 0  # that of an unknown name is negative, and has a text of its own
        reason = (os.strerror(number) if number > 0 else error.strerror or str(error)).lower()
        raise UserError(f"{host}:{port}: {reason}: choose another --host or --port") from None


def _open_when_ready(server: uvicorn.Server, address: str) -> None:
    while not server.started:
        time.sleep(0.05)
    webbrowser.open(address)
