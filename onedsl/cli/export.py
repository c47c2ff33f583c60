"""The command ``onedsl export``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from ..operators.batch_norm_training_backward import BatchNormTrainingBackward
from ..tensors.dtypes import DType
from ..tensors.spec import DataFormatLike, TensorSpec
from .options import OUTPUT_FILE, SHAPE, as_usage_errors, with_operator_options


@click.command(short_help="Write a graph in oneDNN's JSON format.")
@click.argument("shape", type=SHAPE)
@with_operator_options
@click.option("-o", "--output", type=OUTPUT_FILE, help="File to write. The default is stdout.")
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
    with as_usage_errors():
        op = BatchNormTrainingBackward(epsilon, data_format)
        text = op.to_json(
            TensorSpec(shape, dtype),
            stats_dtype=stats_dtype,
            gamma=gamma,
            outputs=outputs,
        )
        if output is None:
            click.echo(text, nl=False)
        else:
            output.write_text(text)
