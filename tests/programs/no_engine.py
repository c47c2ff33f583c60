"""Checks what works and what raises if oneDNN has no CPU engine."""

import numpy as np
import pytest

import onedsl
from onedsl import testing

problem = testing.random_problem((16, 5))
expected = testing.batch_norm_backward(*problem, epsilon=1e-5)
op = onedsl.BatchNormTrainingBackward(1e-5)
testing.assert_close(op(*problem), expected)


def check_rejected(call):
    for _ in range(2):  # the second call raises, too
        with pytest.raises(onedsl.OneDNNError, match="cannot create its CPU engine") as caught:
            call()
        assert "pip install 'onednn-cpu-gomp<2024'" in str(caught.value)
        assert "intel-opencl-rt, and set OCL_ICD_FILENAMES" in str(caught.value)
        assert "conda install -c conda-forge onednn" in str(caught.value)
        assert not isinstance(caught.value, onedsl.UnsupportedError)
        assert caught.value.status == "unimplemented", caught.value.status


out = np.full((16, 5), 7, np.float32), np.full(5, 7, np.float32), np.full(5, 7, np.float32)
check_rejected(lambda: op(*problem, backend="onednn", out=out))
assert all((a == 7).all() for a in out)
graph = op.graph(onedsl.TensorSpec((16, 1, 1, 5)))
for act in (graph.compile, graph.repaired().compile):
    check_rejected(act)
check_rejected(onedsl.capabilities)
