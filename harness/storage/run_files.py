"""The files of one run: which there are, which its end seals, and which are its results.

Everything that seals, checks, packs, submits or merges runs uses these lists.
"""

from __future__ import annotations

ENDS = {"done.json": "done", "failed.json": "failed"}
PREDICTIONS, MODEL = EXTRAS = ("predictions.csv", "model.safetensors")  # written if asked for
RECORDED = ("spec.json", "rounds.jsonl")  # what a record is made of, besides the end
SEALED = (*RECORDED, *EXTRAS)  # files whose checksums are in the end
RESULTS = (*SEALED, *ENDS)  # what may leave the folder
FILES = (*RESULTS, "checkpoint.pt")
CLAIM = "claim"  # locked by the process that computes the run
#: Bytes of the sealed files that are read: JSON takes several times as much memory, the others are read piecewise.
MOST_BYTES = {"spec.json": 1 << 28, "rounds.jsonl": 1 << 30, PREDICTIONS: 1 << 33, MODEL: 1 << 33}
