"""Processes of their own, made by a server that has imported already what takes seconds."""

import os
import runpy
import socket
import sys
from multiprocessing import get_context
from pathlib import Path

CONTEXT = get_context("forkserver")
# The compiler takes two seconds, and torch imports it for optimizers that a test has changed.
CONTEXT.set_forkserver_preload(
    ["pytest", "firstpage.training", "torch.distributed.run", "torch.utils.tensorboard", "torch._dynamo"]
)


def run_processes(target, *calls):
    """Call `target` with each tuple of arguments, in a process each, and return their exit codes."""
    processes = [CONTEXT.Process(target=target, args=arguments, daemon=True) for arguments in calls]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=120)
    return [process.exitcode for process in processes]


def run_ranks(target, world, *arguments):
    """Call `target(rank, world, port, *arguments)` for each rank of a job, and return their exit codes."""
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    return run_processes(target, *((rank, world, port, *arguments) for rank in range(world)))


def start_python(*arguments, errors=os.devnull, folder=".", **environment):
    """Start what `python *arguments` would: a script, or `-m` and a module.

    Returns:
        The process, and what it prints, as a file to read: its end comes when the process and all that it
        started have ended. What they print to stderr is in the file `errors`.
    """
    reader, writer = CONTEXT.Pipe(duplex=False)
    texts = [str(argument) for argument in arguments]
    call = (texts, writer, Path(errors), Path(folder).resolve(), environment)
    process = CONTEXT.Process(target=_python, args=call)  # no daemon: those may not have children
    process.start()
    writer.close()
    return process, os.fdopen(os.dup(reader.fileno()))


def _python(arguments, writer, errors, folder, environment):
    os.dup2(writer.fileno(), 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
    os.chdir(folder)
    os.environ.update(environment)
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).parent))
        runpy.run_path(arguments[0], run_name="__main__")
