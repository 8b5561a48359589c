"""What is read from scikit-learn's files is what scikit-learn loads."""

import importlib.util

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits

from datasets import packaged
from datasets.catalog import load
from datasets.errors import DataError


def test_breast_cancer_is_scikit_learns():
    theirs, (x, y, classes) = load_breast_cancer(), packaged.breast_cancer()
    assert np.array_equal(x, theirs.data) and np.array_equal(y, theirs.target)
    assert classes == tuple(theirs.target_names)
    assert tuple(theirs.feature_names) == packaged.MEASUREMENTS


def test_diabetes_is_scikit_learns():
    theirs, (x, y) = load_diabetes(scaled=False), packaged.diabetes()
    assert np.array_equal(x, theirs.data) and np.array_equal(y, theirs.target)
    assert tuple(theirs.feature_names) == packaged.DIABETES


def test_digits_are_scikit_learns():
    theirs, (images, y) = load_digits(), packaged.digits()
    assert np.array_equal(images, theirs.images) and np.array_equal(y, theirs.target)


@pytest.mark.parametrize("name", ["breast-cancer", "diabetes", "digits"])
def test_a_missing_file_is_named_with_the_mend(monkeypatch, name):
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    with pytest.raises(DataError, match=r"scikit-learn has no file .*csv.* pip install"):
        load(name)
