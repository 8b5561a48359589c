"""Measures of attacks, which `harness.simulation.attacks` computes; the direction is that of protection."""

from __future__ import annotations

from harness.metrics.registry import ATTACKED, Direction, Metric

_MEMBERSHIP = {
    "lira": "likelihood ratios of shadow models (LiRA)",
    "rmia": "relative probabilities (RMIA)",
    "transcript": "the direction of messages",
}


def _measures() -> dict[str, Metric]:
    measures: dict[str, tuple[Direction, str, str]] = {}
    for name, by in _MEMBERSHIP.items():
        measures[f"{name}_auc"] = "min", ".3f", f"Area under the ROC curve of membership by {by} [0.5-1]"
        measures[f"{name}_tpr_1"] = "min", ".3f", f"Members found by {by} at 1 % false accusations [share]"
        measures[f"{name}_tpr_01"] = "min", ".3f", f"Members found by {by} at 0.1 % false accusations [share]"
    measures["inversion_error"] = (
        "max",
        ".3f",
        "Error of samples reconstructed from a message [of guessing the mean]",
    )
    measures["inversion_blind"] = "max", ".3f", "The same without knowing labels [of guessing the mean]"
    measures["inversion_psnr"] = "min", ".1f", "Peak signal-to-noise ratio of reconstructed samples [dB]"
    measures["inversion_labels"] = "min", ".3f", "Labels inferred from a message [share]"
    measures["labels_accuracy"] = "min", ".3f", "Labels inferred from gradients of embeddings [share]"
    measures["labels_blind"] = "min", ".3f", "The commonest label, which a blind guess gets right [share]"
    return {name: Metric(name, *about, lambda _: None) for name, about in measures.items()}


ATTACKED.update(_measures())
