"""What works, and what is refused in words, where oneDNN has no CPU engine."""

import numpy as np
import pytest

import onedsl
from onedsl import testing

problem = testing.random_problem((16, 5))
wanted = testing.batch_norm_backward(*problem, epsilon=1e-5)
op = onedsl.BatchNormTrainingBackward(1e-5)
for backend in ("auto", "native"):
    testing.assert_gradients_close(op(*problem, backend=backend), wanted)
    assert op.compile(onedsl.TensorSpec((16, 5)), backend=backend).backend == "native"


def refuse(call):
    for _ in range(2):  # and at the second time, too
        with pytest.raises(onedsl.OneDNNError, match="cannot make its CPU engine") as caught:
            call()
        assert "pip install onednn-cpu-gomp" in str(caught.value)
        assert "conda install -c conda-forge onednn" in str(caught.value)
        assert not isinstance(caught.value, onedsl.UnsupportedError)
        assert caught.value.status == "unimplemented", caught.value.status


out = np.full((16, 5), 7, np.float32), np.full(5, 7, np.float32), np.full(5, 7, np.float32)
refuse(lambda: op(*problem, backend="onednn", out=out))
assert all((a == 7).all() for a in out)
refuse(lambda: op.compile(onedsl.TensorSpec((16, 5)), backend="onednn"))
refuse(onedsl.capabilities)
print("done")
