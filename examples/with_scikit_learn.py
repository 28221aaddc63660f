"""Calibrated probabilities of a scikit-learn classifier, compared with scikit-learn's own calibration.

Trains a gradient boosting classifier on synthetic data with three classes: as it is, in scikit-learn's
`CalibratedClassifierCV`, and in `RecalibratedClassifierCV`, which chooses a mixture of methods by cross-validation.
Prints accuracy, ECE with its 95 % interval and log loss of each on test data, then the mixture, and whether the best
two differ by more than chance. Takes about 20 seconds and needs scikit-learn 1.8.

    python with_scikit_learn.py
"""

from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import train_test_split

from calibrant import metrics
from calibrant.sklearn import RecalibratedClassifierCV

X, y = make_classification(
    13_000, n_features=20, n_informative=8, n_classes=3, n_clusters_per_class=3, flip_y=0.15, random_state=0
)
X_train, X_test, y_train, y_test = train_test_split(X, y, train_size=3000, stratify=y, random_state=0)

classifier = HistGradientBoostingClassifier(random_state=0)
# Both wrappers train it in five folds, and calibrate each on the fold that it was not trained on.
models = {
    "as it is": classifier,
    "scikit-learn, sigmoid": CalibratedClassifierCV(classifier, method="sigmoid", cv=5),
    "scikit-learn, temperature": CalibratedClassifierCV(classifier, method="temperature", cv=5),
    "Calibrant, auto": RecalibratedClassifierCV(classifier, cv=5),
}
tested = {}
for name, model in models.items():
    probabilities = model.fit(X_train, y_train).predict_proba(X_test)
    tested[name] = metrics.predictions(probabilities=probabilities, target=y_test)

print(f"{'10,000 test samples':26} accuracy     ECE   95 % interval    log loss")
for name, given in tested.items():
    scores, interval = metrics.evaluate(given), metrics.confidence_interval(given, metric="ece")
    print(f"{name:26} {scores.accuracy:8.2%} {scores.ece:7.2%}", end="")
    print(f"  {interval.low:6.2%} to {interval.high:6.2%} {scores.nll:9.4f}")

first, *_ = models["Calibrant, auto"].calibrated_classifiers_
weights = sorted(first.calibrator.weights_.items(), key=lambda entry: -entry[1])
print("\nMixture of the first fold:", ", ".join(f"{name} {weight:.0%}" for name, weight in weights))
print("scikit-learn, temperature (a) against Calibrant, auto (b):")
print(metrics.compare(tested["scikit-learn, temperature"], tested["Calibrant, auto"], metric="nll"))
