"""The function that describes a table before a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from datasets.catalog import describe_data
from datasets.description import Description
from harness.config.fields import DataSpec
from harness.config.settings import checked
from harness.config.yaml import read_yaml
from harness.core.errors import UserError

LOADED_AFTERWARDS = {
    "binary",
    "drop_negatives",
    "normalize",
    "encoder",
    "size",
    "norm",
    "until",
}  # of the data section; no matter of reading
RUN_FILES = (".yaml", ".yml")


def describe(
    data: str | Path | Mapping[str, Any], *, task: Literal["classification", "regression"] | None = None
) -> Description:
    """Describe data, a table in a file of one's own by its columns, like ``python -m harness data describe``.

    Parameters
    ----------
    data : str, Path or Mapping
        An address such as ``csv:FILE?label=COLUMN``, the section ``data`` of a run file, or the path of a run file.
        The label may be left out.
    task : {"classification", "regression"}, optional
        Whether the label's values are classes or numbers; by default what the run file's problem says.

    Returns
    -------
    Description
        ``columns`` says how each is read and why, ``problems`` what must be set before the table can be used,
        ``warnings`` what may not be meant so. As text it is a summary.

    Raises
    ------
    UserError, DataError
        If the section is not valid, or the file cannot be cut into columns.
    """
    section: Any = data
    if isinstance(data, Path) or (isinstance(data, str) and data.endswith(RUN_FILES)):
        content = read_yaml(Path(data))
        content = content.get("base", content)
        if "data" not in content:
            raise UserError(f"{data} has no section data")
        section, problem = content["data"], content.get("problem")
        named = problem.get("kind") if isinstance(problem, Mapping) else problem
        task = task or ("regression" if named == "regression" else None)
    spec = checked("data", DataSpec.model_validate, section)
    options = spec.model_dump(exclude_none=True, exclude=LOADED_AFTERWARDS)
    return describe_data(**options, task=task)
