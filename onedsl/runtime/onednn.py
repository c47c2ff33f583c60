"""The functions of the extension `onedsl._onednn`, which is imported at the first use of one.

Only this extension needs oneDNN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import ERROR_TYPES
from .import_errors import onednn_error_message

if TYPE_CHECKING:
    from .._onednn import *  # noqa: F403
else:
    _NAMES = {
        *("CompiledGraph", "build_hash", "compile_graph", "cpu_isa", "cpu_runtime"),
        *("graph_partitions", "is_of_intel", "make_engine", "missing_isa", "version"),
    }

    def __getattr__(name: str) -> Any:
        if name not in _NAMES:  # pickle asks every module for a name, and expects this error
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            import onedsl._onednn as loaded
        except ImportError as error:
            message = onednn_error_message(error)
            raise ImportError(message, name=error.name, path=error.path) from error
        loaded.set_error_types(*ERROR_TYPES)
        return getattr(loaded, name)
