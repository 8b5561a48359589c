"""The table of a GPU: the CPU goes through the same code, and equals itself."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu import main, table


@pytest.mark.slow
def test_the_cpu_fills_the_table_and_equals_itself(capsys):
    assert main(["--device", "cpu", "--small"]) == 0
    printed = capsys.readouterr().out
    rows = [line.split(" | ") for line in printed.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == 8
    assert [row[1] for row in rows[:3]] == ["0.0e+00 from the CPU's"] * 3
    assert 0 < float(rows[-1][1].rstrip("%")) < 100


def test_without_a_gpu_the_command_says_what_to_do(capsys):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(SystemExit):
        main([])
    assert "torch finds no CUDA device on this machine; use --device cpu --small" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine")
def test_a_gpu_computes_what_the_cpu_does():
    """Sums are in another order, so models are apart by rounding only."""
    for row in list(table("cuda", small=True))[:3]:
        assert float(row.found.split()[0]) < 1e-3
