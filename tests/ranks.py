"""A pool of processes that run distributed tests over gloo.

The processes import the functions that they run, so these are module-level functions. Each process
runs one rank, because it is busy until all ranks have joined.
"""

import concurrent.futures
import datetime
import itertools
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

from torch_helpers import torch

MAX_RANKS = 4
SECONDS = 60.0


class Ranks:
    """Use as a context manager."""

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory()
        self._names = itertools.count()
        self._pool = concurrent.futures.ProcessPoolExecutor(
            MAX_RANKS, multiprocessing.get_context("spawn"), _start_process
        )
        return self

    def __exit__(self, *_):
        self._pool.shutdown()
        self._folder.cleanup()

    def run(self, world, function, *arguments, seconds=SECONDS):
        """Call a function on each rank of a new group and return the list of results.

        Exceptions are raised here.
        """
        store = Path(self._folder.name) / str(next(self._names))
        tasks = [
            self._pool.submit(_join, function, rank, world, str(store), seconds, arguments)
            for rank in range(world)
        ]
        return [task.result(timeout=3 * SECONDS) for task in tasks]


def on_ranks(world, **options):
    """Run a test on each rank of a group. Its argument is the rank.

        @on_ranks(2)
        def test_of_two_processes(rank):
            assert torch.distributed.get_rank() == rank

    pytest calls the test that this makes, with the fixture `ranks`.
    """

    def decorate(function):
        def test(ranks):
            ranks.run(world, test.on_rank, **options)

        function.__qualname__ += ".on_rank"  # by which the processes find it
        test.on_rank, test.__doc__ = function, function.__doc__
        return test

    return decorate


def caught(call, *arguments):
    """Return the type and message of the exception that a call raises, or None."""
    try:
        call(*arguments)
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def init(rank, world, store, seconds):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # the host name may not resolve
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=seconds),
    )


def _start_process():
    # pytest names a test file's module `tests.NAME`, relative to the project's root. The root comes
    # last, because its folder onedsl is not the installed package.
    sys.path.append(str(Path(__file__).parent.parent))
    torch.set_num_threads(1)


def _join(function, rank, world, store, seconds, arguments):
    init(rank, world, store, seconds)
    try:
        return function(rank, *arguments)
    finally:
        torch.distributed.destroy_process_group()
