"""``onedsl export``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from ..bench import arguments
from ..operators.batch_norm_training_backward import BatchNormTrainingBackward
from ..tensors.dtypes import DType
from ..tensors.spec import DataFormatLike, TensorSpec
from .options import SHAPE, Checked, as_usage_errors, with_operator_options


@click.command(short_help="Write a graph as oneDNN's JSON.")
@click.argument("shape", type=SHAPE)
@with_operator_options
@click.option(
    "-o",
    "--output",
    type=Checked("file", arguments.output),
    help="Where the file goes, in place of stdout.",
)
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
    """Write a graph of one op as oneDNN's JSON, for `onedsl run` and for benchdnn.

    SHAPE is src's, as --format has it: 32x56x56x64 is batch, height, width and channels in NXC.
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
