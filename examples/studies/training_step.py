"""What onedsl gains of whole training steps of networks that are trained everywhere.

Each step is a forward and a backward pass and the optimizer's, of one batch of random images. The
steps of PyTorch, of PyTorch under ``onedsl.torch.enable()`` and of the network after
``onedsl.torch.fuse()``, under ``enable()`` as well, are taken in turns. ``onedsl bench --step`` is
the same, by onedsl.bench.steps, with the options of the other benchmarks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import common

from onedsl.bench.table import console, progress

try:
    import torch  # noqa: F401
except ImportError:
    sys.exit("training_step.py needs PyTorch: pip install 'torch>=2.13'")

from onedsl.bench import steps, steps_report
from onedsl.bench.networks import NETWORKS


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print and draw what was measured."""
    parser = common.parser(__doc__)
    parser.add_argument("--batch", type=common.positive, default=16, help="images of a step")
    parser.add_argument(
        "--size", type=common.positive, default=224, help="pixels of an image's side"
    )
    parser.add_argument("--rounds", type=common.positive, default=20, help="steps of each way")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--dtypes", nargs="+", choices=steps.DTYPES, default=steps.DTYPES)
    parser.add_argument("--memories", nargs="+", choices=steps.MEMORIES, default=steps.MEMORIES)
    parser.add_argument("--plot", type=Path, help="where to draw the parts of the steps")
    options = parser.parse_args(arguments)
    cases = steps.cases(options.networks, options.dtypes, options.memories)
    results = [
        steps.measure(case, options.batch, options.size, options.rounds)
        for case in progress(cases, "steps")
    ]
    conditions = steps.conditions(options.batch, options.size)
    console().print(steps_report.results_table(results, conditions))
    if options.plot:
        steps_report.draw(options.plot, results, conditions)


if __name__ == "__main__":
    main()
