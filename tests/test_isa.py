"""The caps on instruction sets, and the kernels of older CPUs.

A process reads the caps once, so each cap has its own process.
"""

import signal

import helpers
import pytest
from helpers import PASSIVE, capped

from onedsl import _core

# What depends on the kernels of onedsl and oneDNN: the laws, by some calls of each operator,
# special values, the instruction sets that oneDNN's types need, and its defects.
OF_KERNELS = (
    *("--calls", "60", "-k", "not torch and not jax"),
    *("laws", "test_activations.py", "test_defects.py", "test_forward.py", "test_matrix.py"),
    "test_numerics.py",
)

# Cap, the kernels that onedsl may then use, and the instruction sets that oneDNN may report.
CAPS = [
    ("SSE41", ["baseline"], ["sse41"]),
    ("AVX2", ["avx2", "baseline"], ["avx2", "sse41", "avx"]),
    ("AVX512_CORE", ["avx512", "avx2", "baseline"], ["avx512_core", "avx2", "avx2_vnni", "sse41"]),
]


def cpu_flags() -> set[str]:
    with open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith("flags"):
                return set(line.split(":")[1].split())
    return set()


def best(names: list[str]) -> str:
    """Return the first of these instruction sets of the kernels that this CPU supports."""
    flags = cpu_flags()
    has = {
        "avx512": {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags,
        "avx2": {"avx2", "fma", "f16c"} <= flags,
        "baseline": True,
    }
    return next(name for name in names if has[name])


# Another cap leaves the kernels as they are, and would repeat the suite.
LOWER = [cap for cap, native, _ in CAPS if best(native) != _core.native_isa()]
# AVX512_BF16 has instructions and kernels of its own, which the cap AVX512_CORE excludes.
OTHER_KERNELS = LOWER + ["AVX512_CORE"] * ("avx512_bf16" in cpu_flags())

REPORT = """
import onedsl
supported = onedsl.capabilities()
types = [d for d in ("f32", "bf16", "f16") if supported.runs_in_onednn(d)]
print(supported.native_isa, supported.onednn_isa, *types)
"""


@pytest.mark.parametrize(("cap", "native", "onednn"), CAPS, ids=[c[0] for c in CAPS])
def test_cap_applies_to_onedsl_and_onednn(cap, native, onednn):
    """For bf16, oneDNN needs AVX512, and for f16 AVX512_FP16, which no cap has."""
    child = helpers.run_child(REPORT, environment=capped(ONEDNN_MAX_CPU_ISA=cap))
    got_native, got_onednn, *types = child.stdout.split()
    assert got_native == best(native)
    assert got_onednn in onednn
    assert types == (["f32", "bf16"] if got_onednn == "avx512_core" else ["f32"])


@pytest.mark.parametrize(
    ("cap", "native"), [("SSE41", ["baseline"]), ("AVX2", ["avx2", "baseline"])]
)
def test_cap_for_onedsl_only(cap, native):
    """ONEDSL_MAX_CPU_ISA overrides ONEDNN_MAX_CPU_ISA, and does not affect oneDNN."""
    uncapped = helpers.run_child(REPORT, environment=capped())
    child = helpers.run_child(REPORT, environment=capped(ONEDSL_MAX_CPU_ISA=cap))
    assert child.stdout.split() == [best(native), *uncapped.stdout.split()[1:]]
    both = helpers.run_child(
        REPORT, environment=capped(ONEDNN_MAX_CPU_ISA="AVX512_CORE", ONEDSL_MAX_CPU_ISA=cap)
    )
    assert both.stdout.split()[0] == best(native)


def run_under(cap, *arguments):
    child = helpers.run_python(
        *("-m", "pytest", "-x", "-q", "-rs", "-p", "no:cacheprovider", *arguments),
        environment=capped(ONEDNN_MAX_CPU_ISA=cap),
        cwd=helpers.TESTS,
        timeout=3600,
    )
    assert " passed" in child.stdout
    skipped = [line for line in child.stdout.splitlines() if line.startswith("SKIPPED")]
    assert [line for line in skipped if "is optional, and not installed here" not in line] == []


@pytest.mark.parametrize(
    "cap",
    [
        pytest.param(cap, marks=[] if cap in LOWER else pytest.mark.isa_caps)
        for cap in OTHER_KERNELS
    ],
)
def test_conversions_under_a_cap(cap):
    """Each instruction set has its own instructions for them."""
    run_under(cap, "test_conversions.py")


@pytest.mark.isa_caps
@pytest.mark.parametrize("cap", LOWER)
def test_kernels_under_a_cap(cap):
    run_under(cap, *OF_KERNELS)


CAPS_AND_CALLS = [
    ("DEFAULT", 200),
    pytest.param("DEFAULT", 4000, marks=pytest.mark.slow),
    *(pytest.param(cap, 2000, marks=pytest.mark.isa_caps) for cap in OTHER_KERNELS),
]


@pytest.mark.parametrize(("cap", "calls"), CAPS_AND_CALLS)
def test_bits_and_accesses_of_kernels(cap, calls):
    """Bits do not depend on threads, addresses or running in place; nothing beyond is accessed."""
    environment = capped(ONEDSL_MAX_CPU_ISA=cap, **PASSIVE)
    child = helpers.run_script("same_bits.py", str(calls), environment=environment, status=None)
    last = child.stdout.splitlines()[-1] if child.stdout else "no run"
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        pytest.fail(f"{name}: memory beyond an array was accessed in {last}", pytrace=False)
    assert child.returncode == 0, f"in {last}:\n{child.stderr}"
    assert last == f"{calls} calls have the same bits"
