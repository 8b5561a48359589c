"""The page of a report in a real browser, after its scripts ran.

It is shown in a frame, as no window of the browser is as narrow as a phone.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.config.report import Pivot, ReportSpec
from harness.report.data.results import Results
from harness.report.html.page import write_report
from tests.support.records import done, evaluation, partition, private, spec, undone

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None
)
ATTACK = "<script>top.document.title = 'attacked'</script>"
PHONE, DESKTOP = 390, 1400

needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium or chrome is installed")


def seen(
    page: Path, script: str, width: int = DESKTOP, dark: bool = False, hash: str = "", library: str = ""
) -> Any:
    """Run a script behind the page's own and return the object it leaves in `told`; the console must stay empty.

    A library's script runs before it.
    """
    assert BROWSER is not None
    inside = page.with_name("inside.html")
    probe = f"let told; {script} parent.postMessage(JSON.stringify(told), '*');"
    probe = f"addEventListener('load', async () => {{ await pictures; {probe} }});"
    probe = f"<script>{library}</script><script>{probe}</script>"
    inside.write_text(page.read_text().replace("</body>", probe + "</body>"))
    outside = page.with_name("outside.html")
    outside.write_text(
        "<!doctype html><meta charset=utf-8><meta name=color-scheme content='light dark'>"
        "<pre id=told></pre>"
        "<script>onmessage = (event) => { document.getElementById('told').textContent = event.data; };</script>"
        f"<iframe src='inside.html{hash}' width={width} height=900 style='border:0'></iframe>"
    )
    flags = (
        "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
    )
    flags += " --disable-component-update --enable-logging=stderr --virtual-time-budget=10000 --dump-dom"
    flags += " --force-dark-mode" if dark else ""
    command = [BROWSER, *flags.split(), f"--user-data-dir={page.parent / 'profile'}", outside.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "attacked" not in shown.stdout
    assert [line for line in shown.stderr.splitlines() if "CONSOLE" in line] == []
    told = re.search(r"<pre id=\"told\">(.*?)</pre>", shown.stdout, re.S)
    assert told is not None
    return json.loads(html.unescape(told[1]))


def example(folder: Path) -> Path:
    """Write a page of two tasks with a private cell, a failure, a refused and a missing cell; reasons attack."""
    grouped = [
        {"group": g, "n": 50, "positives": 20, "accuracy": a, "tpr": a} for g, a in (("f", 0.6), ("m", 0.8))
    ]
    runs = []
    for seed in (0, 1):
        for name, accuracy, eqopp in (("ditto", 0.9, 0.3), ("fedavg", 0.8, 0.1)):
            rounds = [evaluation(r, 1000 * r, accuracy=accuracy + r / 999, eqopp=eqopp) for r in (0, 10, 20)]
            runs.append(done(spec(name, seed), *rounds))
            runs[-1].final["groups"] = grouped
            if name == "ditto":
                runs[-1].final["by_client"] = {
                    "client": ["Rome", "Oslo"],
                    "n": [40, 4 + 4 * seed],
                    "positives": [20, 0],
                    "accuracy": [0.9, 0.5],
                    "auroc": [0.95, None],
                    "loss": [0.2, 0.7],
                }
        last = evaluation(20, 900, epsilon=8.0, accuracy=0.7)
        runs.append(done(spec("fedavg", seed, partition=partition(5.0), privacy=private(8.0)), last))
    runs.append(undone(spec("fedavg", 2), "failed", f"loss is NaN {ATTACK}"))
    runs.append(undone(spec("fedbio"), "missing"))
    runs.append(undone(spec("scaffold", partition=partition(5.0)), "skipped", ATTACK))
    look = ReportSpec(baseline="fedavg", pivots=(Pivot("partition.alpha", "algorithm.name"),))
    return write_report(Results(runs), folder, look)["index.html"]
