"""Data sets of the experiments, and fast loaders.

Each is read from the folder of its official files, gzipped or not, or from the folder above. If the folder is None, it
is downloaded from the Hugging Face hub.
"""

from calibrant_lab.data.cifar import load_cifar10, load_cifar100
from calibrant_lab.data.digits import load_digits
from calibrant_lab.data.imagefolder import ImageFolderData, load_image_folder
from calibrant_lab.data.images import ImageBatches, ImageData, Images, ImageSamples
from calibrant_lab.data.mnist import load_mnist
from calibrant_lab.data.nli import load_anli, load_snli
from calibrant_lab.data.text import Pairs, PairSamples, TextBatches, TextData, TokenisedPairs

__all__ = [
    "ImageBatches", "ImageData", "ImageFolderData", "ImageSamples", "Images", "PairSamples", "Pairs", "TextBatches",
    "TextData", "TokenisedPairs", "load_anli", "load_cifar10", "load_cifar100", "load_digits", "load_image_folder",
    "load_mnist", "load_snli",
]  # fmt: skip
