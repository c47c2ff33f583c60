"""The command ``onedsl export``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from ..operators.batch_norm_training_backward import BatchNormTrainingBackward
from ..tensors.dtypes import DType
from ..tensors.spec import DataFormatLike, TensorSpec
from . import options


@click.command(short_help="Write a graph in oneDNN's JSON format.")
@click.argument("shape", type=options.shape)
@options.tensor_options
@click.option("--epsilon", type=float, default=1e-5, show_default=True, help="The op's epsilon.")
@options.choice("--outputs", "outputs", ("all", "diff_src"), "Gradients to compute.")
@click.option("--gamma/--no-gamma", default=True, show_default=True, help="Whether it has gamma.")
@click.option("-o", "--output", type=options.file, help="File to write. The default is stdout.")
def export(
    shape: tuple[int, ...],
    dtype: DType,
    stats_dtype: DType,
    data_format: DataFormatLike,
    epsilon: float,
    outputs: Literal["all", "diff_src"],
    gamma: bool,
    output: Path | None,
) -> None:
    """Write a graph of one BatchNormTrainingBackward op in oneDNN's JSON format.

    `onedsl run` and oneDNN's benchdnn read this format. SHAPE is the shape of src in the data
    format of --format: in NXC, 32x56x56x64 is batch, height, width and channels.
    """
    with options.user_input():
        op = BatchNormTrainingBackward(epsilon, data_format)
        spec = TensorSpec(shape, dtype)
        graph = op.graph(spec, stats_dtype=stats_dtype, gamma=gamma, outputs=outputs)
    text = graph.to_json()
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
