"""Facts that the command line prints: memory traffic, and the CPUs of the process."""

import json
import os

import pytest

from onedsl.cli import main


@pytest.mark.parametrize(
    ("data_format", "traffic"),
    [
        ("NXC", "0.16 MiB (5 tensors): reads src and diff_dst twice, writes diff_src"),
        ("NCX", "0.09 MiB (3 tensors): reads src and diff_dst, writes diff_src"),
    ],
)
def test_explain_memory_traffic(data_format, traffic, capsys):
    assert main(["explain", "4x16x8x16", "--format", data_format, "--seconds", "0.01"]) == 0
    (line,) = (s for s in capsys.readouterr().out.splitlines() if s.startswith("memory traffic"))
    assert line.removeprefix("memory traffic").strip() == traffic


def test_info_counts_the_cpus_of_the_process(monkeypatch, capsys):
    """As under taskset, which leaves a process some of the machine's CPUs."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7})
    assert main(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_cpus"] == 3
