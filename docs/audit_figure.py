"""Draw a network's reliability diagram before and after temperature scaling: the figure in the README.

    python docs/audit_figure.py densenet40.npz --out docs/audit.png

The file has ``test_logits`` and ``test_labels`` to audit, ``val_logits`` and ``val_labels`` to fit the temperature.
"""

import argparse
import io
from pathlib import Path

import numpy as np
from PIL import Image

from calibrant import metrics, report
from calibrant.metrics.predictions import Predictions
from calibrant.posthoc import TemperatureScaling

# Two figures of 4.7 inches make a column 800 pixels wide at twice the resolution.
DPI = 166


def picture(title: str, given: Predictions) -> Image.Image:
    """Draw a reliability diagram as pixels."""
    drawn = io.BytesIO()
    report.figures.reliability_diagram(given, title=title).savefig(drawn, format="png", dpi=DPI)
    return Image.open(drawn)


def side_by_side(pictures: list[Image.Image], space: int = 40) -> Image.Image:
    """Join pictures of the same height into one."""
    width = sum(one.width + space for one in pictures) - space
    joined = Image.new("RGB", (width, pictures[0].height), "white")
    left = 0
    for one in pictures:
        joined.paste(one, (left, 0))
        left += one.width + space
    return joined


def main() -> None:
    """Read the file, fit the temperature, draw."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("predictions", type=Path, help="an .npz file")
    options.add_argument("--logits", default="test_logits", help="array to audit (default: %(default)s)")
    options.add_argument("--target", default="test_labels", help="its classes (default: %(default)s)")
    options.add_argument("--fit-logits", default="val_logits", help="array to fit on (default: %(default)s)")
    options.add_argument("--fit-target", default="val_labels", help="its classes (default: %(default)s)")
    options.add_argument("--out", type=Path, default=Path("audit.png"), help="image to write (default: %(default)s)")
    given = options.parse_args()

    wanted = (given.logits, given.target, given.fit_logits, given.fit_target)
    try:
        with np.load(given.predictions) as arrays:
            missing = [name for name in wanted if name not in arrays]
            if missing:
                options.error(f"{given.predictions} has no {' and no '.join(missing)}; it has {', '.join(arrays)}")
            logits, target, fit_logits, fit_target = (arrays[name] for name in wanted)
    except OSError as error:
        options.error(str(error))
    target = target.astype(np.int64)
    scaling = TemperatureScaling(strict=True).fit(fit_logits, fit_target.astype(np.int64))
    before = metrics.predictions(logits=logits, target=target)
    after = metrics.predictions(probabilities=scaling.predict_proba(logits), target=target)
    pictures = [
        picture(f"As trained: ECE {100 * metrics.ece(before):.1f} %", before),
        picture(f"After temperature {scaling.temperature_:.2f}: ECE {100 * metrics.ece(after):.1f} %", after),
    ]
    # With few colours, an indexed image is much smaller and looks the same.
    side_by_side(pictures).quantize(128).save(given.out, optimize=True)


if __name__ == "__main__":
    main()
