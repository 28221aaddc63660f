"""What each score means, in a line for those who meet it the first time."""

from collections.abc import Iterable

from calibrant.metrics import Score

MEANINGS = {
    "accuracy": "Share of predictions that are right.",
    "confidence": "Mean probability of the predicted class.",
    "gap": "Mean confidence minus accuracy: above 0 over-confident, below 0 under-confident.",
    "ece": "Distance between confidence and accuracy in bins of confidence, averaged over samples. It depends on the "
    "bins: compare values of one convention only.",
    "ece_guo": "ECE with the 15 bins that most papers since Guo et al. (2017) use.",
    "ece_equal_mass": "ECE with bins that hold equally many samples.",
    "ece_sweep": "Equal-mass ECE with the most bins for which accuracy still rises from bin to bin.",
    "smooth_ece": "ECE without bins: gaps are averaged by a kernel that is as wide as the value itself.",
    "debiased_l2": "Root mean square of the bins' gaps, less what chance adds to it.",
    "mce": "Largest gap of any bin, often that of a bin with few samples.",
    "classwise_ece": "ECE of the probability of one class on all samples, averaged over the classes.",
    "ks": "Largest distance between cumulative confidence and cumulative accuracy. No bins.",
    "esd": "Mean squared distance between these two curves. No bins; unbiased, so chance can take it below 0.",
    "mmce": "Maximum mean calibration error, squared: products of the gaps of samples with similar confidence, "
    "averaged. Unbiased, so chance can take it below 0.",
    "nll": "Mean negative logarithm of the probability of the true class: accuracy and calibration in one number.",
    "brier": "Squared distance between probabilities and the truth, summed over classes: accuracy and calibration "
    "in one number.",
    "brier_top": "Squared distance between confidence and being right: MCB\xa0\N{MINUS SIGN}\xa0DSC\xa0+\xa0UNC.",
    "brier_miscalibration": "Miscalibration: what the best increasing map of confidences takes off the Brier score.",
    "brier_discrimination": "Discrimination: how well confidence tells right from wrong. More is better.",
    "brier_uncertainty": "Uncertainty: the Brier score of always being as sure as the accuracy says.",
    "aurc": "Area under the risk-coverage curve: the share of errors among the most confident samples, averaged over "
    "how many of them are kept.",
}


def meanings(scores: Iterable[Score]) -> list[dict[str, str]]:
    """Label and meaning of each of these scores, once.

    Example:
        >>> meanings([Score("accuracy", "accuracy", 0.9, ""), Score("accuracy", "accuracy", 0.8, "")])
        [{'label': 'accuracy', 'meaning': 'Share of predictions that are right.'}]
    """
    labels = {score.key: score.label.strip() for score in scores}
    return [{"label": label, "meaning": MEANINGS[key]} for key, label in labels.items() if key in MEANINGS]
