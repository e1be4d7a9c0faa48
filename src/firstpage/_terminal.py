"""What the command line writes to the terminal: texts, warnings and errors, a line each."""

import os
import signal
import warnings
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from firstpage._text import escape, shorten


def print_text(text: str, *, err: bool = False) -> None:
    """Print a text: here, and only here, what files and folders are called meets the terminal."""
    typer.echo(escape(text), err=err)


def show_warnings() -> Callable[..., None]:
    """Return what shows warnings: the package's own in one line, once each, others as Python does."""
    package, others, shown = os.path.dirname(__file__), warnings.showwarning, set()

    def show(message: Warning | str, category: type[Warning], filename: str, *where: Any) -> None:  # noqa: ANN401
        text = " ".join(str(message).split())
        if not filename.startswith(package):
            others(escape(str(message)), category, filename, *where)
        elif text not in shown:
            shown.add(text)
            print_text(shorten(f"firstpage: warning: {text}"), err=True)

    return show


def describe_error(error: Exception) -> str:
    """Return the message of an error; those of the operating system, which have no remedy, get one."""
    if isinstance(error, OSError) and error.filename is not None and error.errno:
        reason = os.strerror(error.errno)
        if error.strerror == reason:  # not a message of our own
            return f"{error.filename}: {reason.lower()}: choose another path"
    return str(error)


class Commands(TyperGroup):
    """The commands: one that a signal stops says how to go on, and ends with the signal's exit code."""

    def invoke(self, context: Any) -> Any:  # noqa: ANN401
        try:
            return super().invoke(context)
        except KeyboardInterrupt as stopped:  # a `training.Stopped`, or Ctrl-C anywhere else
            print_text(f"firstpage: {str(stopped) or 'stopped: run it again to go on'}", err=True)
            raise typer.Exit(128 + getattr(stopped, "signal", signal.SIGINT)) from None
