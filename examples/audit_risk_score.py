"""Audit a risk score, find the groups for which it is wrong, and correct it with last year's outcomes.

Makes loans of two years with the stated risk of default and whether the loan defaulted. Risks are overstated, in the
south more than in the north. Last year's loans fit the correction; this year's judge the score before and after it.
Prints the verdict and the groups each time. With your own table, replace `loans` by `pandas.read_csv`, or run
`calibrant evaluate this_year.csv --group region` on the file. Takes about 20 seconds.

    python audit_risk_score.py
"""

import textwrap

import numpy as np
import pandas as pd

from calibrant import metrics, posthoc, report

rng = np.random.default_rng(0)


def loans(count: int) -> pd.DataFrame:
    """Region, stated risk and default of each loan."""
    region = rng.choice(["north", "south"], count)
    risk = 1 / (1 + np.exp(-rng.normal(-2, 1, count)))
    stated = np.minimum(risk * np.where(region == "south", 1.7, 1.3), 0.99)
    return pd.DataFrame({"region": region, "risk": stated, "default": (rng.random(count) < risk).astype(int)})


def show(title: str, risk: pd.Series, year: pd.DataFrame) -> None:
    """Print the verdict on risks, and the groups."""
    given = metrics.predictions(probabilities=risk, target=year["default"])
    verdict = report.audit(title, given, repair=False).verdict
    groups = metrics.calibration_by_group(risk, year["default"], groups={"region": year["region"]})
    print(f"{title}\n{textwrap.fill(verdict, 100)}\n{groups}\n")


last_year, this_year = loans(8000), loans(8000)
show("As stated", this_year["risk"], this_year)

# One correction for all loans. It is fitted on last year's, whose outcomes are known before this year's are needed.
auto = posthoc.AutoCalibration()
auto.fit(posthoc.logits_from_probabilities(last_year["risk"]), last_year["default"])
corrected = auto.predict_proba(posthoc.logits_from_probabilities(this_year["risk"]))
show("Corrected", corrected.iloc[:, 1], this_year)

# The groups still differ, in opposite directions: one correction cannot serve both. One for each region does.
by_region = pd.Series(0.0, index=this_year.index)
for region, past in last_year.groupby("region"):
    auto = posthoc.AutoCalibration()
    auto.fit(posthoc.logits_from_probabilities(past["risk"]), past["default"])
    present = this_year[this_year["region"] == region]
    by_region[present.index] = auto.predict_proba(posthoc.logits_from_probabilities(present["risk"])).iloc[:, 1]
show("Corrected in each region", by_region, this_year)
