"""The command `firstpage serve`."""

from pathlib import Path
from typing import Annotated

import typer

from firstpage.errors import UserError


def serve_index(
    indexes: Annotated[list[Path], typer.Argument(help="Folder of an index, or of two to compare.")],
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8000,
    token: Annotated[
        str | None, typer.Option(envvar="FIRSTPAGE_TOKEN", help="What clients have to give.")
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--allow-host", help="A name that the server is called by; repeatable."),
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve a search page of an index, and its API, on this machine."""
    try:
        from firstpage.serve.server import run_server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("fastapi", "starlette", "uvicorn", "anyio", "h11"):
            raise
        raise UserError(f"serve needs {error.name}: pip install 'firstpage[serve]'") from None

    run_server(indexes, host=host, port=port, token=token, hosts=names or (), open_browser=open_browser)
