"""Accuracy and ECE of the predictions that a Hugging Face ``Trainer`` gathers."""

from typing import Any

import numpy as np

from calibrant import metrics


def scores_of_predictions(predictions: Any, labels: Any) -> dict[str, float]:
    """Accuracy and ECE of what Trainer gathered: arrays, or lists of them from batches it did not join."""
    logits, labels = joined(predictions, labels)
    if np.ndim(logits) != 2 or np.shape(labels) != np.shape(logits)[:1]:
        raise ValueError(
            f"ECE needs logits (N, C) and labels (N,), got {np.shape(logits)} and {np.shape(labels)}: "
            "preprocess_logits_for_metrics must leave the logits as they are"
        )
    counts = labels != -100  # as everywhere in transformers
    if not counts.any():
        return {}
    given = metrics.predictions(logits=logits[counts], target=labels[counts])
    return {"accuracy": metrics.accuracy(given), "ece": metrics.ece(given, bins=20, convention="paper")}


def joined(predictions: Any, labels: Any) -> tuple[Any, Any]:
    """Logits and labels as arrays; models may return more than logits, of which these are the first."""
    logits = predictions[0] if isinstance(predictions, tuple) else predictions
    if not isinstance(logits, list):
        return logits, labels
    return np.concatenate([batch[0] if isinstance(batch, tuple) else batch for batch in logits]), np.concatenate(labels)


def counted(labels: Any) -> int:
    """Number of labels that count, in an array or a list of them."""
    parts = labels if isinstance(labels, list) else [labels]
    return sum(int((np.asarray(part) != -100).sum()) for part in parts)
