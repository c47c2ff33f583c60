"""oneDNN's graph of one op in both data formats: printed, drawn, compiled, run, checked, timed.

python onednn_graph.py    # also writes onednn_graph_NXC.svg and .json, and the same for NCX
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import onedsl
from onedsl import bench, testing
from onedsl.graph import Graph

EPSILON = 1e-5
SHAPES: dict[onedsl.DataFormat, tuple[int, ...]] = {
    onedsl.DataFormat.NXC: (8, 40, 40, 96),
    onedsl.DataFormat.NCX: (8, 96, 40, 40),
}


def main() -> None:
    """Show, run, check and time both graphs."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    for data_format, shape in SHAPES.items():
        op = onedsl.BatchNormTrainingBackward(EPSILON, data_format)
        graph = op.graph(onedsl.TensorSpec(shape))
        print(graph)
        graph.draw(f"onednn_graph_{data_format}.svg")

        file = Path(f"onednn_graph_{data_format}.json")
        file.write_text(graph.to_json())
        compiled = Graph.from_json(file.read_text()).compile()

        problem = testing.random_problem(shape, data_format=data_format)
        inputs = problem._asdict()
        out = compiled(out=None, **inputs)
        reference = testing.batch_norm_backward(*problem, epsilon=EPSILON, data_format=data_format)
        gradients = onedsl.BatchNormGradients(**out)
        testing.assert_close(gradients, reference, backend="onednn")

        times = bench.time_calls({"graph": partial(compiled, out=out, **inputs)})
        print(f"right, {times.seconds['graph'] * 1e6:,.0f} us\n")
        if times.noisy:
            print(bench.noise_warning())


if __name__ == "__main__":
    main()
