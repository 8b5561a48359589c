"""A small study in Python: what privacy costs on breast-cancer, for two ways to place the noise.

Run it whole, ``python docs/examples/study.py``, or cell by cell in an editor that knows ``# %%``. Runs that have
been made are not made again, so change a line and go on.
"""

# %% What is run: a ladder of budgets, two placements of the noise, three seeds
from pathlib import Path

import harness

OUT = Path("results/study")
BASE = {
    "data": "breast-cancer",
    "partition": {"kind": "dirichlet", "alpha": 1.0, "clients": 8, "at_least": 10},
    "model": "logistic",
    "algorithm": {"name": "fedavg", "lr": 0.05, "local_steps": 5},
    "rounds": 20,
    "eval_every": 5,
}
LADDER = [2, 8, 32, 128]  # epsilon of the whole run, for all that a client holds
SEEDS = range(3)

# %% Run it
for seed in SEEDS:
    runs = [BASE | {"seed": seed}]
    for epsilon in LADDER:
        for placement in ("central", "local"):
            privacy = {"unit": "client", "placement": placement, "epsilon": epsilon, "clip": 1.0}
            runs.append(BASE | {"seed": seed, "privacy": privacy})
    for spec in runs:
        record = harness.run(spec, OUT)
        if record.status != "done":  # a run that diverges is no exception: look at it
            print(record.id, record.status, record.reason)

# %% Load the results: one row per evaluation
results = harness.load_results(OUT)
results["noise"] = results["privacy.placement"].fillna("none")
results["epsilon"] = results["privacy.epsilon"].fillna(float("inf"))
last = results[results["round"] == results["rounds"]]

# %% A table: mean and sample standard deviation over the seeds
table = last.groupby(["noise", "epsilon"])["accuracy"].agg(["mean", "std", "count"])
print(table.round(4).to_string())

# %% The harness's own table of the same runs, ranked, with bytes and the exact epsilon
board = harness.leaderboard(OUT)
print(
    board[["rank", "dp_placement", "epsilon_total", "accuracy_mean", "accuracy_std", "bytes_up"]].to_string()
)

# %% A picture: accuracy against epsilon; the line is the mean, the band the standard deviation
import matplotlib.pyplot as plt  # noqa: E402
import seaborn as sns  # noqa: E402

figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
private = last[last["noise"] != "none"]
sns.lineplot(private, x="epsilon", y="accuracy", hue="noise", errorbar="sd", marker="o", ax=axes)
axes.axhline(
    last.loc[last["noise"] == "none", "accuracy"].mean(), color="gray", linestyle="--", label="no noise"
)
axes.set(
    xscale="log", xlabel="epsilon of the run (delta 1e-5)", ylabel="accuracy on the clients' test samples"
)
axes.set_xticks(LADDER, [str(epsilon) for epsilon in LADDER])
axes.minorticks_off()
axes.legend(frameon=False)
figure.savefig(OUT / "privacy-ladder.png", dpi=150)
print("wrote", OUT / "privacy-ladder.png")
