"""From three ugly files of hospitals to a federated run with central privacy, and to predictions."""

import json

import numpy as np
import pandas as pd
import pytest

from harness.__main__ import main
from harness.storage.store import Store

ROWS = 90
RUN = """
data:
  files:
    Köln: {path: FOLDER/koeln.csv, encoding: cp1252, decimal: ","}
    Bern:
      path: FOLDER/bern.csv
      na: -999
      rename: {id: Patient, age: Alter, height: Größe, crp: CRP, sex: Geschlecht, ill: krank}
      map: {Geschlecht: {male: m, female: w}, krank: {1: ja, 0: nein}, Patient: {"*": "B*"}}
      scale: {Größe: 100}
    Wien: {path: FOLDER/WIEN, na: n.d., map: {Patient: {"*": "W*"}}}
  label: krank
  user: Patient
  sensitive: Geschlecht
  missing: {CRP: fill}
partition: natural
model: logistic
algorithm: {name: fedavg, lr: 0.5, local_steps: 5, batch_size: 16}
privacy: {placement: central, epsilon: 8, clip: 1}
rounds: 5
"""


def patients(seed):
    """Return a table as the first hospital keeps it; two rows are of one patient."""
    draw = np.random.default_rng(seed)
    age, crp = draw.integers(20, 90, ROWS), draw.gamma(2, 5, ROWS).round(1)
    return pd.DataFrame(
        {
            "Patient": np.arange(ROWS) // 2,
            "Alter": age,
            "Größe": draw.normal(170, 9, ROWS).round(1),
            "CRP": crp,
            "Geschlecht": draw.choice(["m", "w"], ROWS),
            "krank": np.where(draw.normal(age / 10 + crp / 5) > 7.5, "ja", "nein"),
        }
    )


def bern(table):
    """Return the table with other names and codes, and heights in metres."""
    table = table.assign(
        Geschlecht=table.Geschlecht.map({"m": "male", "w": "female"}),
        krank=table.krank.map({"ja": 1, "nein": 0}),
        Größe=table.Größe / 100,
    )
    return table.set_axis(["id", "age", "height", "crp", "sex", "ill"], axis=1)


def write_files(folder, *, excel):
    first = patients(0)
    first.loc[::20, "CRP"] = np.nan
    first.to_csv(folder / "koeln.csv", sep=";", decimal=",", encoding="cp1252", index=False)
    second = bern(patients(1))
    second.loc[::15, "crp"] = -999
    second.to_csv(folder / "bern.csv", index=False)
    third = patients(2)
    third["CRP"] = third.CRP.astype(object)
    third.loc[::17, "CRP"] = "n.d."
    name = "wien.xlsx" if excel else "wien.csv"
    third.to_excel(folder / name, index=False) if excel else third.to_csv(folder / name, index=False)
    (folder / "run.yaml").write_text(
        RUN.replace("FOLDER", str(folder)).replace("WIEN", name), encoding="utf-8"
    )


@pytest.mark.parametrize("excel", [False, True])
def test_ugly_files_become_a_private_run_and_predictions(tmp_path, capsys, caplog, excel):
    if excel:
        pytest.importorskip("openpyxl")
    write_files(tmp_path, excel=excel)
    assert main(["data", "describe", str(tmp_path / "run.yaml"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["clients"] == {"Bern": 90, "Köln": 90, "Wien": 90}
    assert found["users"] == {"users": 135, "fewest": 2, "most": 2, "scattered": 0}
    assert found["features"] == 5 and found["positive"] == "ja"

    out = tmp_path / "out"
    assert main(["run", "--spec", str(tmp_path / "run.yaml"), "--save-model", "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "Köln + Bern + Wien: 270 rows" in said.err and "central placement" in said.out
    (record,) = Store(out).records()
    assert record.status == "done" and all(
        name in json.dumps(record.final["by_client"], ensure_ascii=False) for name in ("Bern", "Köln", "Wien")
    )

    new = bern(patients(3))
    new.loc[0, "height"] = 171  # centimetres
    new.loc[1, "sex"] = "unknown"
    new.loc[2, "crp"] = -999
    new.to_csv(tmp_path / "new.csv", index=False)
    caplog.clear()
    call = ["predict", str(out / "runs" / record.id), str(tmp_path / "new.csv"), "--like", "Bern"]
    assert main([*call, "--keep", "Patient", "--fill", "--csv", str(tmp_path / "p.csv")]) == 0
    predicted = pd.read_csv(tmp_path / "p.csv")
    assert predicted["Patient"].tolist() == [f"B{number}" for number in new["id"]]
    assert set(predicted["prediction"]) <= {"ja", "nein"}
    assert (
        "column 'Größe': 1 of 90 rows have numbers out of the range of training, such as 17100 in row 1"
        in (caplog.text)
    )
    assert "column 'Geschlecht': 1 of 90 rows have values that training had not, 'unknown'" in caplog.text
    assert main(call) == 2  # without --fill
    assert main(call[:-2]) == 2
    assert "say which by --like: 'Köln', 'Bern', 'Wien'" in capsys.readouterr().err
    assert main([*call[:-1], "Berne"]) == 2
    assert "Did you mean 'Bern'?" in capsys.readouterr().err
