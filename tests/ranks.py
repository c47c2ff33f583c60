"""Processes that train together: four that stay, and form groups over gloo as tests ask for them.

What they run is a function of a module that they can import, called with their rank. A process is
one rank because it waits for the others: none is free for a second task before all have come.
"""

from __future__ import annotations

import concurrent.futures
import datetime
import itertools
import multiprocessing
import os
import tempfile
from pathlib import Path

from torch_helpers import torch

MOST = 4
SECONDS = 60.0


class Ranks:
    """Use as a context manager."""

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory()
        self._names = itertools.count()
        self._pool = concurrent.futures.ProcessPoolExecutor(
            MOST, multiprocessing.get_context("spawn"), _begin
        )
        return self

    def __exit__(self, *_):
        self._pool.shutdown()
        self._folder.cleanup()

    def run(self, world, function, *arguments, seconds=SECONDS):
        """Call a function on each rank of a group, and give what they give, or raise.

        Exceptions that are expected come back as values: see `caught`.
        """
        store = Path(self._folder.name) / str(next(self._names))
        tasks = [
            self._pool.submit(_join, function, rank, world, str(store), seconds, arguments)
            for rank in range(world)
        ]
        return [task.result(timeout=3 * SECONDS) for task in tasks]


def caught(call, *arguments):
    """Give the type and the words of what a call raises."""
    try:
        call(*arguments)
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def init(rank, world, store, seconds):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # a machine's own name need not have an address
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=seconds),
    )


def _begin():
    torch.set_num_threads(1)


def _join(function, rank, world, store, seconds, arguments):
    init(rank, world, store, seconds)
    try:
        return function(rank, *arguments)
    finally:
        torch.distributed.destroy_process_group()
