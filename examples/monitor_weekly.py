"""Watch a model's calibration week by week, as a scheduler does.

Makes the predictions of a quarter on which the model was accepted, and of four weeks after it; in the last two the
risks are too low. Runs one command for each week: `calibrant evaluate` compares the week with the quarter, appends a
row to the history and ends with status 1 if the errors have grown. Prints the verdict and the status of each week,
then the history. Takes about 20 seconds.

    python monitor_weekly.py

In production the week's table comes from your database, and a crontab has the command; its mail is the alarm:

    0 6 * * MON  calibrant evaluate week.csv --baseline quarter.csv --fail-if worse-than-baseline --history audits.csv
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

rng = np.random.default_rng(0)


def predictions(count: int, shift: float) -> pd.DataFrame:
    """Stated risks, and outcomes whose log-odds are higher by the shift."""
    log_odds = rng.normal(-1, 1, count)
    happened = rng.random(count) < 1 / (1 + np.exp(-log_odds - shift))
    return pd.DataFrame({"y_prob": 1 / (1 + np.exp(-log_odds)), "y_true": happened.astype(int)})


with tempfile.TemporaryDirectory() as temporary:
    folder = Path(temporary)
    predictions(8000, 0).to_csv(folder / "quarter.csv", index=False)
    for week, shift in enumerate((0, 0, 0.4, 0.8), 1):
        predictions(1000, shift).to_csv(folder / f"week{week}.csv", index=False)
        command = [
            sys.executable, "-m", "calibrant", "evaluate", f"week{week}.csv", "--baseline", "quarter.csv",
            "--fail-if", "worse-than-baseline", "--history", "audits.csv",
        ]  # fmt: skip
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        verdict = " ".join(done.stdout.split()).partition(". ")[0]
        print(f"{verdict}.\n    exit status {done.returncode}", *done.stderr.splitlines()[-1:])
    history = pd.read_csv(folder / "audits.csv")
print(f"\naudits.csv has {len(history.columns)} columns, among them:")
print(history[["samples", "gap", "ece", "brier", "p_value"]].round(4).to_string())
