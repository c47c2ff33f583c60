"""Reports about the batch-norm layers of a model: their states, and why a layer is skipped."""

# No annotations from __future__ here: pdoc would not find the types of the fields.

import collections
from typing import Literal, NamedTuple

from torch import nn

from ._convert import is_converted, why_not_converted
from ._fuse import is_fused, why_not_fused
from ._layer_classes import is_batch_norm
from ._relu_layers import ReLULayer


class LayerReport(NamedTuple):
    """The state of one batch-norm layer of a model.

    Attributes
    ----------
    name : str
        The layer's name in the model.
    kind : str
        The name of the layer's class.
    state : {"PyTorch's", "converted", "fused"}
        "PyTorch's" is the state of all layers that onedsl did not change. "fused" includes
        onedsl.torch's own classes with a ReLU, such as `BatchNormReLU2d`.
    convert : str
        Why `convert` skips the layer, or an empty string if it does not skip the layer.
    fuse : str
        Why `fuse` skips the layer, or an empty string if it does not skip the layer.
    """

    name: str
    kind: str
    state: Literal["PyTorch's", "converted", "fused"]
    convert: str
    fuse: str


class ModelReport(list[LayerReport]):
    """The states of the batch-norm layers of a model. ``str(report)`` is a one-line summary."""

    def __str__(self) -> str:
        """Return the number of layers in each state, and the number skipped for each reason."""
        states = collections.Counter(layer.state for layer in self)
        skipped = collections.Counter(layer.fuse for layer in self if layer.fuse)
        counts = ", ".join(f"{count} {state}" for state, count in states.most_common())
        reasons = "".join(f"; fuse skips {count}: {why}" for why, count in skipped.items())
        plural = "" if len(self) == 1 else "s"
        return f"{len(self)} batch-norm layer{plural}{': ' * bool(self)}{counts}{reasons}"


def report(model: nn.Module) -> ModelReport:
    """Report for each batch-norm layer of a model what `convert` and `fuse` did or would do.

    The report does not include `enable`, which applies to layers of any class that call PyTorch's
    batch norm.

    Parameters
    ----------
    model : torch.nn.Module
        A model, or a layer. The function neither changes nor runs it.

    Returns
    -------
    list of LayerReport
        One item for each batch-norm layer, in the order of ``model.named_modules()``. ``str`` of
        the list is a one-line summary.

    Notes
    -----
    `convert` and `fuse` log the skipped layers and the reasons to the logger ``onedsl.torch``, at
    level INFO.

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.BatchNorm2d(8), torch.nn.ReLU())
    >>> print(onedsl.torch.report(onedsl.torch.fuse(model)))
    1 batch-norm layer: 1 fused
    >>> for layer in onedsl.torch.report(model):
    ...     print(layer.name, layer.kind, layer.state)
    0 FusedBatchNorm2d fused
    """
    return ModelReport(
        LayerReport(
            name,
            type(layer).__name__,
            _state(layer),
            why_not_converted(layer),
            "" if isinstance(layer, ReLULayer) else why_not_fused(layer),
        )
        for name, layer in model.named_modules()
        if is_batch_norm(layer)
    )


def _state(layer: nn.Module) -> Literal["PyTorch's", "converted", "fused"]:
    """Return the state of a batch-norm layer, as in `LayerReport`."""
    if is_fused(layer) or isinstance(layer, ReLULayer):
        return "fused"
    return "converted" if is_converted(layer) else "PyTorch's"
