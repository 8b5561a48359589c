"""Measures of attacks, which `harness.simulation.attacks` computes; the direction is that of protection."""

from __future__ import annotations

from collections.abc import Iterator

from harness.metrics.registry import ATTACKED, Direction, Metric

_MEMBERSHIP = {
    "lira": "likelihood ratios of shadow models (LiRA)",
    "rmia": "relative probabilities (RMIA)",
    "transcript": "the direction of messages",
}


def _measures() -> Iterator[Metric]:
    def measure(name: str, direction: Direction, form: str, meaning: str, unit: str) -> Metric:
        return Metric(name, direction, form, meaning, unit, lambda _: None)

    for name, by in _MEMBERSHIP.items():
        area = f"Area under the ROC curve of membership by {by}"
        yield measure(f"{name}_auc", "min", ".3f", area, "0.5-1")
        yield measure(
            f"{name}_tpr_1", "min", ".3f", f"Members found by {by} at 1 % false accusations", "share"
        )
        yield measure(
            f"{name}_tpr_01", "min", ".3f", f"Members found by {by} at 0.1 % false accusations", "share"
        )
    rebuilt, guess = "Error of samples reconstructed from a message", "of guessing the mean"
    yield measure("inversion_error", "max", ".3f", rebuilt, guess)
    yield measure("inversion_blind", "max", ".3f", "The same without knowing labels", guess)
    yield measure("inversion_psnr", "min", ".1f", "Peak signal-to-noise ratio of reconstructed samples", "dB")
    yield measure("inversion_labels", "min", ".3f", "Labels inferred from a message", "share")
    yield measure("labels_accuracy", "min", ".3f", "Labels inferred from gradients of embeddings", "share")
    commonest = "The commonest label, which a blind guess gets right"
    yield measure("labels_blind", "min", ".3f", commonest, "share")


ATTACKED.update({measure.name: measure for measure in _measures()})
