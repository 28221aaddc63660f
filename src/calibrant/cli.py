"""The command line."""

import sys
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from calibrant import __version__

app = App(
    name="calibrant",
    help="Neural networks that say how sure they are, and are right about it.",
    version=__version__,
)

Positive = Annotated[int, Parameter(validator=Number(gte=1))]
NotNegative = Annotated[float, Parameter(validator=Number(gte=0, lt=float("inf")))]


@app.command
def demo(*, seeds: Positive = 5, epochs: Positive = 40, weight: NotNegative = 1.0, noise: NotNegative = 0.3) -> None:
    """Train LeNet5 on scikit-learn's digits with NLL and with NLL + ESD, and compare.

    Needs no data and no download; takes about a minute and a half on two cores.

    Args:
        seeds: How many networks to train each way.
        epochs: Passes over the training images.
        weight: Weight of ESD beside the NLL.
        noise: Standard deviation of the noise added to the pixels, whose range is 0 to 1.
    """
    from rich.console import Console

    from calibrant.experiments.demo import run_demo

    run_demo(seeds=seeds, epochs=epochs, weight=weight, noise=noise, console=Console())


def main() -> None:
    """Run the command line; Ctrl-C ends it without a traceback."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
