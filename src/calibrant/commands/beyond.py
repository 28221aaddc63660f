"""What `calibrant evaluate` says of predictions that are not read into memory."""

from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from calibrant.commands.terminal import plain
from calibrant.metrics import CalibrationTest, Interval, Scores
from calibrant.metrics.scale import Statistics
from calibrant.metrics.scale_inference import ClassJudgement
from calibrant.metrics.verdicts import p_value
from calibrant.report.verdict import FEW, MOST_NAMED, few_samples, risks_of

# Rows of the table of classes; the rest is in JSON.
MOST_SHOWN = 12


@dataclass(frozen=True)
class Beyond:
    """What is known of predictions that were not read into memory.

    Attributes:
        scores: Exact scores.
        found: Sums, from which everything else follows.
        test: Test of the top label, the risk of class 1 or the confidence.
        gap: Interval of its gap.
        classes: Tests of single classes of several.
        notices: What was assumed or is doubtful, in sentences.
    """

    scores: Scores
    found: Statistics
    test: CalibrationTest
    gap: Interval
    classes: tuple[ClassJudgement, ...]
    notices: tuple[str, ...]

    def verdict(self) -> str:
        """The average error, the test, and the classes that are not calibrated, in sentences."""
        low, high = 100 * self.gap.low, 100 * self.gap.high
        said = [few_samples(self.found.samples)] if self.found.samples < FEW else []
        said.append(
            f"The average gap of {self._judged()} is {100 * self.gap.value:+z.2f} points (95 % interval {low:+z.2f} to "
            f"{high:+z.2f})."
        )
        rejected = "is rejected" if self.test.rejected() else "is not rejected"
        said.append(f"The hypothesis that they are calibrated {rejected} ({p_value(self.test.p_value)}).")
        if self.classes:
            said.append(self._together())
        return " ".join(said)

    def _judged(self) -> str:
        names = self.found.names
        return {
            "risk": f"the {risks_of(names[1] if names else '1')}",
            "top label": "the confidences in the top label",
            "confidence": "the confidences",
        }[self.found.judged]

    def _together(self) -> str:
        total = self.found.classes or len(self.classes)
        of = f"{len(self.classes):,} classes"
        if total > len(self.classes):
            of = f"the {len(self.classes):,} classes of {total:,} that the model expects most often"
        smallest = p_value(min(each.p_value for each in self.classes))
        wrong = sorted((each for each in self.classes if each.rejected), key=lambda each: -abs(each.gap.value))
        if not wrong:
            return f"None of {of} is rejected as uncalibrated (smallest {smallest}, Holm's correction)."
        named = "; ".join(f"class {each.name} {_error(each.gap)}" for each in wrong[:MOST_NAMED])
        more = f"; and {len(wrong) - MOST_NAMED:,} more" if len(wrong) > MOST_NAMED else ""
        return (
            f"The probabilities of {len(wrong):,} of {of} are not calibrated ({smallest} at the smallest, Holm's "
            f"correction): {named}{more}."
        )

    def as_data(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "verdict": self.verdict(),
            **self.scores.to_dict(),
            "intervals": {"gap": asdict(self.gap)},
            "test": asdict(self.test) | {"rejected_at_5_percent": self.test.rejected()},
            "views": [
                {
                    "kind": "class", "name": each.name, "rejected_at_5_percent": each.rejected,
                    "p_value": each.p_value, "test": asdict(each.test), "gap": asdict(each.gap),
                }
                for each in self.classes
            ],
            "notices": list(self.notices),
        }  # fmt: skip

    def print_classes(self, console: Console) -> None:
        """A table of the classes, the surest error first."""
        if not self.classes:
            return
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("judged", overflow="fold")
        for heading in ("gap", "95 % interval", "p"):
            table.add_column(heading, justify="right", no_wrap=True)
        for each in sorted(self.classes, key=lambda each: each.p_value)[:MOST_SHOWN]:
            gap = each.gap
            table.add_row(
                plain(f"class {each.name}"), f"{100 * gap.value:+z.2f}",
                f"{100 * gap.low:z.2f} to {100 * gap.high:z.2f}",
                p_value(each.p_value).removeprefix("p ").removeprefix("= "),
            )  # fmt: skip
        console.print(table)
        if len(self.classes) > MOST_SHOWN:
            console.print(f"{len(self.classes) - MOST_SHOWN:,} more classes are in --json.", highlight=False)


def _error(gap: Interval) -> str:
    if gap.low <= 0 <= gap.high:
        return "is within chance on average, but not at every probability"
    over = gap.value > 0
    low, high = (gap.low, gap.high) if over else (-gap.high, -gap.low)
    points = f"{100 * abs(gap.value):.2f} points on average (95 % interval {100 * low:z.2f} to {100 * high:z.2f})"
    return f"is {'over' if over else 'under'}stated by {points}"
