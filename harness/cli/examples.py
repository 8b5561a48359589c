"""Examples at the end of every ``--help``; a test parses each. The first are those of the command line itself."""

import argparse
from collections.abc import Sequence
from typing import Any

PROGRAM = "python -m harness"

EXAMPLES: dict[str, tuple[str, ...]] = {
    "": (
        "run --algorithm fedavg --data breast-cancer --rounds 20 --out results",
        "sweep --algorithm fedavg --data breast-cancer --set 'privacy={placement: central, clip: 1}' "
        "--sweep privacy.epsilon=null,32,8 --sweep seed=0..4 --out results",
        "leaderboard results",
        "list algorithms",
    ),
    "run": (
        "run --algorithm fedavg --data adult --clients 20 --rounds 50",
        "run --algorithm '{name: scaffold, lr: 0.05}' --data breast-cancer "
        "--set 'privacy={placement: central, epsilon: 8, clip: 1}'",
        "run --spec results/runs/ID/spec.json --out elsewhere",
        "run --cell results/reference/quickstart/leaderboard.csv:0ba0dc6fd76c --out again",
    ),
    "suite": (
        "suite quickstart --out results",
        "suite mine.yaml --sweep seed=0..9 --jobs 8",
        "suite frontier --profile paper --limit-hours 8 --trim",
    ),
    "sweep": (
        "sweep --algorithm fedavg --data adult --set 'privacy={placement: central, clip: 1}' "
        "--sweep privacy.epsilon=null,8,2 --sweep seed=0..4",
        "sweep --algorithm fedavg --data adult --random 'algorithm.lr={log_uniform: [0.01, 1]}' --draws 20",
    ),
    "tune": (
        "tune mine.yaml --metric auroc --out results",
        "tune private.yaml --epsilon none,8,2 --budget 48 --seeds 0..4 --jobs 2",
    ),
    "plan": (
        "plan quickstart",
        "plan --algorithm fedavg --data adult --set 'privacy={placement: central, epsilon: 2, clip: 1}'",
    ),
    "status": ("status results", "status results --suite quickstart --json"),
    "resume": ("resume results", "resume results --suite mine --jobs 8"),
    "retry": ("retry results --suite mine",),
    "merge": ("merge results theirs --out both", "merge theirs --out results"),
    "leaderboard": (
        "leaderboard results --suite quickstart --by auroc --baseline fedavg --csv table.csv",
        "leaderboard results --where 'epsilon_total <= 2' --columns algorithm,accuracy_mean,bytes_up",
    ),
    "report": (
        "report results --suite quickstart",
        "report results --pivot algorithm.name,privacy.epsilon,auroc",
    ),
    "recommend": (
        "recommend results --epsilon 2 --where 'auroc >= 0.8'",
        "recommend results/reference/frontier/leaderboard.csv --epsilon 2 --bytes 1MB",
        "recommend --clients 300 --samples 150 --skew 0.1 --epsilon 2 --pilot pilot.yaml",
    ),
    "export": ("export results --csv all.csv", "export results --tensorboard board"),
    "predict": ("predict results/runs/ID patients.csv --csv predictions.csv",),
    "new": ("new algorithm fed_mine",),
    "doctor": ("doctor", "doctor --out /shared/results --json"),
    "verify": ("verify results", "verify results.tar.gz --sample 5"),
    "archive": ("archive results results.tar.gz",),
    "list": ("list algorithms", "list suites"),
    "data": ("data list", "data fetch adult", "data draw clients.png --data digits --partition dirichlet"),
    "data describe": (
        "data describe 'csv:patients.csv?label=ill&client=hospital'",
        "data describe hospitals.yaml --json",
    ),
    "data list": ("data list --json",),
    "data fetch": ("data fetch adult breast-cancer",),
    "data draw": (
        "data draw clients.png --data digits --clients 5 --partition '{kind: dirichlet, alpha: 0.3}'",
    ),
    "check": ("check fedavg", "check mine --plugin mine.py --verbose"),
    "audit": (
        "audit --algorithm fedavg --data breast-cancer --set 'privacy={placement: central, epsilon: 8, clip: 1}'",
    ),
    "epsilon": (
        "epsilon --noise-multiplier 1.1 --cohort 100/10000 --rounds 500 --sampling poisson",
        "epsilon --for-epsilon 2 --cohort 10/100 --rounds 100",
    ),
    "completion": ('eval "$(fedfrontier completion bash)"', "completion zsh > ~/.zsh/_fedfrontier"),
}


def epilog(program: str, examples: Sequence[str]) -> str:
    """Return examples as a help shows them."""
    lines = (line if line.startswith("eval") else f"{program} {line}" for line in examples)
    return "\n".join(["examples:", *(f"  {line}" for line in lines)])


def with_examples(program: str, examples: Sequence[str]) -> dict[str, Any]:
    """Return the arguments that end a parser's help with examples, line by line."""
    return {"epilog": epilog(program, examples), "formatter_class": argparse.RawDescriptionHelpFormatter}
