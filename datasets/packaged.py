"""Tables that scikit-learn brings along: breast cancer, diabetes, digits.

They are read from its files, because importing it takes longer than a small run.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.errors import DataError

PARTS = (
    *("radius", "texture", "perimeter", "area", "smoothness"),
    *("compactness", "concavity", "concave points", "symmetry", "fractal dimension"),
)
MEASUREMENTS = (
    *(f"mean {part}" for part in PARTS),
    *(f"{part} error" for part in PARTS),
    *(f"worst {part}" for part in PARTS),
)  # the columns of breast_cancer.csv, which does not name them
DIABETES = ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6")


def breast_cancer() -> tuple[NDArray[np.float64], NDArray[np.int64], tuple[str, ...]]:
    """Return the measurements ``(569, 30)``, the labels and the names of the two classes."""
    path = _file("breast_cancer.csv")
    with path.open(encoding="utf-8") as lines:
        classes = tuple(next(lines).strip().split(",")[2:])
    table = np.loadtxt(path, delimiter=",", skiprows=1)
    return np.ascontiguousarray(table[:, :-1]), table[:, -1].astype(np.int64), classes


def diabetes() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the measurements ``(442, 10)``, which are not scaled, and the numbers to predict."""
    return np.loadtxt(_file("diabetes_data_raw.csv.gz")), np.loadtxt(_file("diabetes_target.csv.gz"))


def digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the images ``(1797, 8, 8)`` of 17 gray levels, and the digits."""
    table = np.loadtxt(_file("digits.csv.gz"), delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8).astype(np.uint8), table[:, -1].astype(np.int64)


def _file(name: str) -> Path:
    spec: Any = importlib.util.find_spec("sklearn")  # does not import it
    places = [] if spec is None else [Path(place) for place in spec.submodule_search_locations]
    for place in places:
        if (path := place / "datasets" / "data" / name).is_file():
            return path
    raise DataError(f"scikit-learn has no file {name} here: pip install 'scikit-learn>=1.7'")
