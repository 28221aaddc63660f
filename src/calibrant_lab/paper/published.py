"""The numbers of the paper's Tables 1 to 3, to the digit as printed there.

Yoon, Tee, Yoon, Yoon, Kim, Li and Yoo, "ESD: Expected Squared Difference as a Tuning-Free Trainable Calibration
Measure", ICLR 2023. Percent; mean and standard deviation of five trials. The weights λ behind them were not published.
"""

from pathlib import Path
from typing import NamedTuple

from calibrant_lab.sweeps.sweep import COLUMNS, Sweep


class Printed(NamedTuple):
    """A cell of the paper, as numbers and as printed."""

    mean: float
    std: float
    text: str


def published(sweep: Sweep) -> dict[str, dict[str, Printed]]:
    """The paper's numbers beside a sweep, by row and column; none beside other data or another network.

    Example:
        >>> published(Sweep(name="table1", recipe="mnist"))["+ ESD"]["ece"]
        Printed(mean=0.3, std=0.035, text='0.30±0.035')
        >>> published(Sweep(name="table1", recipe="digits"))
        {}
        >>> published(Sweep(name="table1", recipe="mnist", settings={"model": "resnet20"}))
        {}
    """
    if not _papers_network(sweep):
        return {}
    lines = _TABLES.get(sweep.name, {}).get(sweep.recipe, "").strip().splitlines()
    columns = COLUMNS[:2] if sweep.name == "table3" else COLUMNS
    return {
        name.strip(): dict(zip(columns, map(_printed, cells), strict=True))
        for name, *cells in (line.rsplit(None, len(columns)) for line in lines)
    }


def _papers_network(sweep: Sweep) -> bool:
    """Whether the network is the recipe's: by its name, or from a folder of that name."""
    ours, recipes = sweep.base.settings, sweep.base.of_recipe.settings()
    given, model = (str(getattr(one, "model", "")) for one in (ours, recipes))
    return Path(given).name == model and getattr(ours, "initial_weights", None) is None


def _printed(text: str) -> Printed:
    mean, std = text.split("±")
    return Printed(float(mean), float(std), text)


# Columns: accuracy, ECE, ECE after TS, accuracy after VS, ECE after VS.
_TABLE1: dict[str, str] = {
    "mnist": """
        NLL           98.8±0.034   0.91±0.080   0.31±0.044   98.7±0.058   0.43±0.123
        + MMCE        98.4±0.320   0.36±0.029   0.33±0.068   98.4±0.250   0.32±0.055
        + SB-ECE      97.9±0.177   0.41±0.067   0.45±0.103   97.9±0.073   0.39±0.088
        + ESD         98.6±0.204   0.30±0.035   0.29±0.030   98.6±0.167   0.28±0.071
    """,
    "cifar10": """
        NLL           92.9±0.159   5.49±0.105   1.89±0.105   92.3±0.625   2.96±1.596
        + MMCE        91.5±0.340   4.92±0.292   1.92±0.274   91.3±0.429   2.52±0.586
        + SB-ECE      91.6±0.288   4.86±0.319   1.63±0.300   91.5±0.343   1.88±0.393
        + ESD         92.1±0.141   3.08±0.692   1.60±0.089   92.1±0.314   1.61±0.287
    """,
    "cifar100": """
        NLL           68.4±0.491   23.8±0.403   5.74±0.306   67.3±0.551   9.78±0.640
        + MMCE        66.5±0.644   13.9±0.545   4.91±0.457   66.3±0.773   4.59±1.575
        + SB-ECE      67.3±0.367   14.7±1.370   4.94±0.240   66.4±0.369   4.57±1.253
        + ESD         67.4±0.356   13.6±0.950   4.85±0.390   67.1±0.496   4.28±1.396
    """,
    "imagenet100": """
        NLL           75.8±0.397   10.3±0.686   2.51±0.378   75.9±0.595   2.86±0.459
        + MMCE        74.3±0.248   3.83±0.644   1.94±0.262   74.5±0.444   2.29±0.227
        + SB-ECE      74.4±0.596   4.28±0.318   2.06±0.260   74.7±0.472   2.13±0.198
        + ESD         74.6±0.320   1.80±0.262   1.72±0.350   74.8±0.436   1.87±0.266
    """,
    "snli": """
        NLL           90.2±0.434   4.20±0.420   1.04±0.112   90.1±0.397   0.96±0.099
        + MMCE        89.4±0.491   1.11±0.181   1.01±0.178   89.5±0.588   1.08±0.170
        + SB-ECE      89.1±0.668   1.82±0.301   0.99±0.180   89.2±0.765   0.90±0.109
        + ESD         89.3±0.536   0.98±0.165   0.73±0.192   89.4±0.583   0.61±0.126
    """,
    "anli": """
        NLL           49.4±0.323   35.9±0.505   4.16±0.445   48.4±0.492   5.10±0.657
        + MMCE        49.0±0.471   31.2±0.850   3.71±0.175   47.7±0.429   4.79±0.693
        + SB-ECE      48.5±0.481   33.9±1.378   3.98±0.733   47.3±0.281   5.10±0.119
        + ESD         48.0±0.451   28.8±0.543   3.49±0.373   47.1±0.429   4.42±1.010
    """,
}
_TABLE2: dict[str, str] = {
    "cifar10": """
        NLL (b512)    92.9±0.159   5.49±0.105   1.89±0.105   92.3±0.625   2.96±1.596
        + ESD (b512)  92.1±0.141   3.08±0.692   1.60±0.089   92.1±0.314   1.61±0.287
        + ESD (b256)  91.5±0.137   3.15±0.587   1.61±0.073   91.9±0.573   1.60±0.082
        + ESD (b128)  91.5±0.519   2.93±0.539   1.70±0.600   91.7±0.246   2.20±0.584
        + ESD (b64)   91.3±0.753   3.91±0.847   1.87±0.132   91.5±0.257   2.65±1.48
    """,
    "snli": """
        NLL (b512)    90.2±0.434   4.20±0.420   1.04±0.112   90.1±0.397   0.96±0.099
        + ESD (b512)  89.3±0.536   0.98±0.165   0.73±0.192   89.4±0.583   0.61±0.126
        + ESD (b256)  89.9±0.314   1.11±0.236   0.76±0.241   88.9±0.146   0.62±0.147
        + ESD (b128)  89.8±0.435   0.99±0.244   0.68±0.190   89.6±0.490   0.58±0.187
        + ESD (b64)   89.1±0.660   1.06±0.285   0.83±0.260   88.8±0.672   0.81±0.153
    """,
}
# Accuracy and ECE. Its NLL row is not the one of Table 1.
_TABLE3: dict[str, str] = {
    "cifar100": """
        NLL (b512)    68.6±0.034   22.4±0.105
        + ECE (b512)  68.2±0.025   14.6±0.252
        + ECE (b256)  67.9±0.057   18.1±0.552
        + ECE (b128)  68.1±0.084   21.0±0.552
    """,
}
_TABLES: dict[str, dict[str, str]] = {"table1": _TABLE1, "table2": _TABLE2, "table3": _TABLE3}
