"""The shape of data of one's own, which are loaded to count them."""

from __future__ import annotations

from typing import Any

from datasets.counting import count
from harness.config.run import read_spec
from harness.core.errors import UserError
from harness.report.data.references import Shape
from harness.simulation.federations import make_federation


def shape_of_data(data: Any, clients: int | None = None) -> Shape:
    """Return how samples and labels are held.

    Parameters
    ----------
    data : str or dict
        Section ``data`` of a run file, or an address such as ``csv:FILE?label=y&client=site``.
    clients : int, optional
        Deal the samples to so many clients at random, where no column names them.

    Raises
    ------
    UserError
        If the data name no clients and none are given.
    """
    partition = {"kind": "natural"} if clients is None else {"kind": "iid", "clients": clients}
    spec = {"data": data, "partition": partition, "algorithm": "fedavg", "model": "logistic"}
    federation = make_federation(read_spec(spec))
    if federation is None:
        raise UserError(f"--data: a data set or a file is needed, given {data!r}")
    return Shape.of(count(federation))
