"""What onedsl did with the batch-norm layers of a model, and what it could do."""

# No annotations from __future__ here: pdoc would not find the types of the result's fields.

from typing import Literal, NamedTuple

from torch import nn

from . import _convert
from ._batch_norms import is_batch_norm
from ._find import find
from ._fused import FusedLayer


class LayerReport(NamedTuple):
    """What is known of one batch-norm layer of a model.

    Attributes
    ----------
    name : str
        Its name in the model.
    kind : str
        The name of its class.
    state : {"PyTorch's", "converted", "fused"}
        Whose it is.
    convert : str
        Why `convert` leaves it; empty if it does not.
    fuse : str
        Why `fuse` leaves it; empty if it does not.
    """

    name: str
    kind: str
    state: Literal["PyTorch's", "converted", "fused"]
    convert: str
    fuse: str


def report(model: nn.Module) -> list[LayerReport]:
    """Tell of each batch-norm layer of a model what `convert` and `fuse` did or would do.

    What `enable` does is not in it: that goes for all layers, of whatever class, that end in
    PyTorch's batch norm.

    Parameters
    ----------
    model : torch.nn.Module
        A model, or a layer. Nothing of it is changed.

    Returns
    -------
    list of LayerReport
        In the order of ``model.named_modules()``.

    Notes
    -----
    `convert` and `fuse` log the same, to the logger ``onedsl.torch`` at the level INFO.

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.BatchNorm2d(8), torch.nn.ReLU())
    >>> for layer in onedsl.torch.report(onedsl.torch.fuse(model)):
    ...     print(layer.name, layer.kind, layer.state)
    0 BatchNormReLU2d fused
    """
    _, left = find(model)
    return [
        LayerReport(
            name, type(layer).__name__, _state(layer), _convert.why_left(layer), left.get(layer, "")
        )
        for name, layer in model.named_modules()
        if is_batch_norm(layer)
    ]


def _state(layer: nn.Module) -> Literal["PyTorch's", "converted", "fused"]:
    if isinstance(layer, FusedLayer):
        return "fused"
    return "converted" if _convert.is_converted(layer) else "PyTorch's"
