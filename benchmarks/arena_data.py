"""Data of the arena: saved predictions with labels, each in a calibration and a test part.

Three kinds of source, found by what a folder holds:

- ``.npz`` files with keys ``MODEL-SPLIT/{cal, cal_y, test, test_y}``: probabilities and labels, one file a data set.
  In a folder named ``networks`` a file is a task of networks, and what stands before the first hyphen is its source.
- The saved outputs of networks that ``NETWORKS`` lists. Files that only have a test part are cut into halves by a fixed
  seed; split 0 calibrates on the first half and tests on the second, split 1 the other way round.
- ``.h5`` files of CalArena (arXiv 2605.30188): groups ``DATASET/MODEL`` with ``probas_cal``, ``labels_cal``,
  ``probas_test``, ``labels_test``; binary probabilities of class 1 in one column. The name of the file says what it
  holds: ``tabrepo-...``, ``tabarena-...`` are tabular, ``cv-...``, ``imagenet-...`` networks.

A pair is a data set with a model. Every method gets the same float32 probabilities.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

Array = NDArray[Any]

GROUPS = (
    "networks, 3 to 10 classes",
    "networks, 100 classes",
    "networks, binary",
    "tabular, multi-class",
    "tabular, binary",
)

# Pairs are for development, or were held out and have been seen since, so that they too are for development by now; all
# others are held out. Of the tabular sets of each kind, in alphabetical order, the second, fourth, ... are for
# development: first among those of an earlier comparison, later among the first generation of `benchmarks.arena_fresh`;
# so are the sources of its networks. Older networks were chosen by hand, by family and depth.
DEVELOPMENT_SETS = (
    "Caravan", "credit_data", "HMDA", "mlc_churn", "spambase",
    "iris", "nassCDS", "satimage", "vehicle",
    "australian", "bupa", "email", "HealthInsurance", "ionosphere", "lending_club", "OJ", "ring", "sonar", "SwissLabor",
    "tic-tac-toe", "VerbAgg",
    "Chile", "hayes-roth", "hpc_data", "marketing", "olive", "splice", "vowel", "Yogurt",
)  # fmt: skip
DEVELOPMENT_NETWORKS = (
    "resnet20", "resnet44", "lenet5",
    "bert_r1", "roberta_from_r2", "roberta_from_r3", "anli_roberta_large",
    "cifar10", "mnist", "rte", "snli",
)  # fmt: skip
SEEN_SETS = (
    "breast_cancer", "chess", "Default", "mammographic", "phoneme", "wa_churn",
    "digits", "letter", "penbased", "storms", "Wage",
    "attrition", "banana", "cells", "german", "heart", "k401ksubs", "magic", "pima", "saheart", "stackoverflow", "taxi",
    "twonorm", "wisconsin",
    "BEPS", "contraceptive", "Heating", "led7digit", "movement_libras", "segment", "texture", "WVS",
)  # fmt: skip
SEEN_NETWORKS = (
    "resnet32", "resnet56", "densenet40", "densenet-bc-100",
    "anli_albert_xxlarge", "anli_bart_large", "anli_electra_large", "anli_xlnet_large",
    "cad", "cities", "multinli", "sick", "tiny",
)  # fmt: skip
SEEN_BINARY_SETS = (
    "Arrests", "bands", "Benefits", "births14", "breast", "catholic", "College", "Contraception", "CreditCard", "crx",
    "flchain", "guPrenat", "headInjury", "housevotes", "loanapp", "Males", "monica", "monk-2", "Mroz", "nwtco", "recid",
    "SmokeBan", "SuicideChina", "TitanicSurvival", "voteincome", "Weekly", "Wells",
    "abalone9-18", "Airlines", "anes_vote84", "charity", "colon", "Cowles", "CPS1988", "credit_cards", "Dee04",
    "DoctorVisits", "ecoli1", "fertil2", "flare-F", "guImmun", "haberman", "injury", "Kershaw", "KosteckiDillon",
    "MathPlacement", "mgus2", "muscatine", "NCbirths", "nlswork", "NMES1988", "ohio", "page-blocks0", "PSID7682",
    "ResumeNames", "rotterdam", "thornton_hiv", "TV16", "twoyear", "Whickham2", "winequality-red-4", "yeast1",
    "yeast3", "YouthRisk",
)  # fmt: skip
SEEN_BINARY_NETWORKS = ("genders", "glyphs", "library", "locales", "sounds", "unicode")


class Network(NamedTuple):
    """Where the outputs of one network are: a key of the test part, and of the calibration part if there is one."""

    data: str
    file: str
    test: str
    labels: str = "labels"
    calibration: str | None = None
    calibration_labels: str | None = None
    logits: bool = False


NETWORKS = {
    **{
        depth: Network("CIFAR-10", "akamaster_resnets_cifar10_test_logits.npz", depth, logits=True)
        for depth in ("resnet20", "resnet32", "resnet44", "resnet56")
    },
    "lenet5": Network("CIFAR-10", "netcal_lenet-5-cifar-10.npz", "probs"),
    "densenet40": Network(
        "CIFAR-10", "nncal_densenet40_c10.npz", "test_logits", "test_labels", "val_logits", "val_labels", logits=True
    ),
    "densenet-bc-100": Network("CIFAR-100", "netcal_densenet-bc-100-cifar-100.npz", "probs"),
    **{
        name: Network("ANLI", "anli_dev_probs_8models.npz", name)
        for name in (
            "roberta_from_r2", "roberta_from_r3", "bert_r1", "anli_roberta_large", "anli_bart_large",
            "anli_xlnet_large", "anli_electra_large", "anli_albert_xxlarge",
        )
    },
}  # fmt: skip
ANIMALS = [2, 3, 4, 5, 6, 7]
CAT, DOG = 3, 5


class Part(NamedTuple):
    """Probabilities ``(N, C)`` and labels ``(N,)``."""

    p: Array
    y: Array


class Case(NamedTuple):
    """One fit: a pair, a split of it, and how to read its data."""

    group: str
    data: str
    model: str
    split: int
    block: str  # what the bootstrap draws: the data set, the network, or the source that fresh networks share
    part: str  # development, seen or held-out
    read: Callable[[], tuple[Part, Part]]

    @property
    def pair(self) -> str:
        """Name of the pair."""
        return f"{self.data}/{self.model}"

    @property
    def key(self) -> str:
        """Name of the case in files of results."""
        return f"{self.pair}/{self.split}"


def kind(tabular: bool, classes: int) -> str:
    """Group of a pair."""
    if tabular:
        return GROUPS[4] if classes == 2 else GROUPS[3]
    return GROUPS[2] if classes == 2 else GROUPS[0] if classes <= 10 else GROUPS[1]


def cases(folders: Iterable[Path], which: Sequence[str] = ("held-out", "seen", "development")) -> list[Case]:
    """Every case of some folders or ``.h5`` files that belongs to some parts."""
    found = [case for folder in folders for case in _of(folder)]
    if not found:
        given = ", ".join(map(str, folders)) or "no folder"
        raise FileNotFoundError(f"no predictions in {given}: give --data, or set CALIBRANT_DATA (see CONTRIBUTING.md)")
    return [case for case in found if case.part in which]


def _of(source: Path) -> Iterator[Case]:
    if source.suffix == ".h5":
        yield from calarena(source)
        return
    if not source.is_dir():
        raise FileNotFoundError(f"{source} is neither a folder nor an .h5 file")
    listed = {network.file for network in NETWORKS.values()}
    for path in sorted(source.glob("*.npz")):
        if path.name in listed:
            yield from _networks(path)
        else:
            yield from _saved(path)
    for path in sorted(source.glob("*.h5")):
        yield from calarena(path)


def _part(p: Array, y: Array) -> Part:
    """Float32 probabilities whose rows sum to one as nearly as float32 can, and int64 labels."""
    p = np.asarray(p, dtype=np.float64)
    if p.ndim == 1 or p.shape[1] == 1:
        p = np.stack((1 - p.reshape(-1), p.reshape(-1)), axis=1)
    return Part((p / p.sum(axis=1, keepdims=True)).astype(np.float32), np.asarray(y).reshape(-1).astype(np.int64))


def _part_of(block: str, classes: int, *, tabular: bool) -> str:
    if block in (DEVELOPMENT_SETS if tabular else DEVELOPMENT_NETWORKS):
        return "development"
    seen = SEEN_SETS if tabular else SEEN_NETWORKS
    seen_binary = SEEN_BINARY_SETS if tabular else SEEN_BINARY_NETWORKS
    return "seen" if block in seen or (classes == 2 and block in seen_binary) else "held-out"


def _saved(path: Path) -> Iterator[Case]:
    with np.load(path) as file:
        names = sorted({name.rsplit("/", 1)[0] for name in file.files})
        if not all(f"{name}/{part}" in file.files for name in names for part in ("cal", "cal_y", "test", "test_y")):
            raise ValueError(f"{path.name} must have the keys MODEL-SPLIT/{{cal, cal_y, test, test_y}}")
        classes = int(file[f"{names[0]}/cal"].shape[-1])

    def reader(name: str) -> Callable[[], tuple[Part, Part]]:
        def read() -> tuple[Part, Part]:
            with np.load(path) as file:
                return (
                    _part(file[f"{name}/cal"], file[f"{name}/cal_y"]),
                    _part(file[f"{name}/test"], file[f"{name}/test_y"]),
                )

        return read

    data = path.stem
    tabular = path.parent.name != "networks"
    block = data if tabular else data.split("-")[0]
    for name in names:
        model, split = name.rsplit("-", 1)
        part = _part_of(block, classes, tabular=tabular)
        yield Case(kind(tabular, classes), data, model, int(split), block, part, reader(name))


def _networks(path: Path) -> Iterator[Case]:
    """Each network with its classes, and what is derived from it.

    The group of binary tasks: on CIFAR-10, animal or machine (all rows, probabilities of the classes added up) and cat
    or dog (rows of these two classes, renormalised); on ANLI, class 0 (entailment) against the rest. The development
    part has no network with 100 classes of its own: there, an image is joined with another, and the task is to name the
    classes of both, with the product of their probabilities.
    """
    for name, network in NETWORKS.items():
        if network.file != path.name:
            continue
        derived: dict[str, tuple[int, Callable[[Part], Part]]] = {}
        if network.data == "ANLI":
            derived = {"ANLI": (3, _same), "ANLI entailment": (2, _entailment)}
        elif network.data == "CIFAR-100":
            derived = {"CIFAR-100": (100, _same)}
        else:
            derived = {
                "CIFAR-10": (10, _same),
                "CIFAR-10 animal or machine": (2, _animals),
                "CIFAR-10 cat or dog": (2, _cats),
            }
            if name in DEVELOPMENT_NETWORKS:
                derived["CIFAR-10 two images"] = (100, _two_images)
        for data, (classes, derive) in derived.items():
            for split in range(1 if network.calibration else 2):
                yield Case(
                    kind(False, classes), data, name, split, name, _part_of(name, classes, tabular=False),
                    lambda network=network, split=split, derive=derive: tuple(  # type: ignore[misc]
                        derive(part) for part in _halves(path, network, split)
                    ),
                )  # fmt: skip


def _halves(path: Path, network: Network, split: int) -> tuple[Part, Part]:
    def part(p: str, y: str) -> Part:
        values = file[p].astype(np.float64)
        return _part(softmax(values, axis=1) if network.logits else values, file[y])

    with np.load(path) as file:
        test = part(network.test, network.labels)
        if network.calibration is not None and network.calibration_labels is not None:
            return part(network.calibration, network.calibration_labels), test
    order = np.random.default_rng(zlib.crc32(network.file.encode())).permutation(len(test.y))
    first, second = order[: len(order) // 2], order[len(order) // 2 :]
    halves = Part(test.p[first], test.y[first]), Part(test.p[second], test.y[second])
    return halves if split == 0 else (halves[1], halves[0])


def _same(part: Part) -> Part:
    return part


def _entailment(part: Part) -> Part:
    return _part(part.p[:, 0], part.y == 0)


def _animals(part: Part) -> Part:
    # Both sums, rather than one from the other: a small probability of machine is not lost.
    machines = [label for label in range(10) if label not in ANIMALS]
    p = np.stack((part.p[:, machines].sum(axis=1), part.p[:, ANIMALS].sum(axis=1)), axis=1)
    return _part(p, np.isin(part.y, ANIMALS))


def _cats(part: Part) -> Part:
    rows = (part.y == CAT) | (part.y == DOG)
    p = np.maximum(part.p[rows][:, [CAT, DOG]].astype(np.float64), np.finfo(np.float32).tiny)
    return _part(p, part.y[rows] == DOG)


def _two_images(part: Part) -> Part:
    """Join each image with another: an image is once the first and once the second of a pair."""
    other = np.roll(np.arange(len(part.y)), 1)
    p = part.p.astype(np.float64)
    joint = p[:, :, None] * p[other][:, None, :]
    return _part(joint.reshape(len(p), -1), part.y * p.shape[1] + part.y[other])


def calarena(path: Path) -> Iterator[Case]:
    """Cases of an HDF5 file of CalArena; needs h5py."""
    import h5py

    tabular = path.stem.startswith("tab")

    def reader(name: str) -> Callable[[], tuple[Part, Part]]:
        def read() -> tuple[Part, Part]:
            with h5py.File(path, "r") as file:
                group = file[name]
                return (
                    _part(group["probas_cal"][()], group["labels_cal"][()]),
                    _part(group["probas_test"][()], group["labels_test"][()]),
                )

        return read

    with h5py.File(path, "r") as file:
        for data, models in file.items():
            for model, group in models.items():
                missing = {"probas_cal", "labels_cal", "probas_test", "labels_test"} - set(group)
                if missing:
                    raise ValueError(f"{path.name}: {data}/{model} has no {', '.join(sorted(missing))}")
                shape = group["probas_cal"].shape
                classes = 2 if len(shape) == 1 or shape[1] == 1 else int(shape[1])
                block = data if tabular else model
                name = f"{path.stem}:{data}"
                yield Case(kind(tabular, classes), name, model, 0, block, "held-out", reader(f"{data}/{model}"))
