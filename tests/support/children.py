"""Processes of their own, made by a server that has imported already what takes seconds."""

import socket
from multiprocessing import get_context

CONTEXT = get_context("forkserver")
# An optimizer imports torch._dynamo, which takes 2 s, when it is made.
CONTEXT.set_forkserver_preload(
    ["pytest", "firstpage.training", "torch._dynamo", "torch.distributed.run", "torch.utils.tensorboard"]
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
