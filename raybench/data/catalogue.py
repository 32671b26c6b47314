"""The data sets known by name: what they hold, where they lie in the data folder, and how they are fetched."""

from __future__ import annotations

import importlib.util
import os
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import platformdirs

from raybench.core import terminal
from raybench.data.files import DATASET_KEY, data_error, input_errors

ENDINGS = ("", ".bz2", ".gz", ".xz")
SECONDS = 30  # that a site may stay without an answer


def folder() -> Path:
    """Return the data folder: $RAYBENCH_DATA, or the user's cache where it is unset."""
    place = os.environ.get("RAYBENCH_DATA", "")
    return Path(place).expanduser() if place else Path(platformdirs.user_cache_dir("raybench"))


def files_of(name: str) -> list[Path]:
    """Return the files in the data folder that the set ``name`` is read from; none where they are not there yet."""
    if name in EMBEDDED or "/" in name:
        return []
    if name in IMAGE_SETS or name in VIEW_SETS:
        files = IMAGE_SETS[name].files if name in IMAGE_SETS else VIEW_FILES
        paths = [*map(present, files)]
    else:
        paths = [find(place, name) for place in ("libsvm", "text")]
    return [path for path in paths if path is not None]


def present(name: str) -> Path | None:
    """Return a file of the data folder if it is there; for a ``.gz`` an unpacked one will do."""
    file = folder() / name
    plain = file.with_suffix("") if file.suffix == ".gz" else file
    return next((path for path in (file, plain) if path.is_file()), None)


# LIBSVM sets ----------------------------------------------------------------------------------------

SITE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
# files that scikit-learn ships, labels last: to import it for them takes half a second
EMBEDDED = {"breast_cancer": "breast_cancer.csv", "digits": "digits.csv.gz"}


class LibsvmSet(NamedTuple):
    """A LIBSVM data set: rows, features, and the file's address."""

    rows: int
    d: int
    url: str


PLAIN = {
    "a1a": (1605, 123), "a2a": (2265, 123), "a3a": (3185, 123), "a4a": (4781, 123),
    "a5a": (6414, 123), "a6a": (11220, 123), "a7a": (16100, 123), "a8a": (22696, 123),
    "a9a": (32561, 123), "a9a.t": (16281, 123),
    "w1a": (2477, 300), "w2a": (3470, 300), "w3a": (4912, 300), "w4a": (7366, 300),
    "w5a": (9888, 300), "w6a": (17188, 300), "w7a": (24692, 300), "w8a": (49749, 300),
    "w8a.t": (14951, 300),
    "mushrooms": (8124, 112), "phishing": (11055, 68), "australian": (690, 14),
    "australian_scale": (690, 14), "diabetes": (768, 8), "german.numer": (1000, 24),
    "heart": (270, 13), "ionosphere_scale": (351, 34), "sonar_scale": (208, 60),
    "splice": (1000, 60), "svmguide1": (3089, 4), "madelon": (2000, 500),
    "cod-rna": (59535, 8),
}  # fmt: skip
PACKED = {
    "covtype.libsvm.binary.scale": (581012, 54), "duke": (44, 7129),
    "gisette_scale": (6000, 5000), "ijcnn1": (49990, 22), "news20.binary": (19996, 1355191),
    "rcv1_train.binary": (20242, 47236), "real-sim": (72309, 20958),
}  # fmt: skip
LIBSVM_SETS = {name: LibsvmSet(*shape, SITE + name) for name, shape in PLAIN.items()}
LIBSVM_SETS |= {name: LibsvmSet(*shape, f"{SITE}{name}.bz2") for name, shape in PACKED.items()}
LIBSVM_SETS = dict(sorted(LIBSVM_SETS.items()))


def embedded(name: str) -> np.ndarray:
    """Return the rows (N, d + 1) of a set that comes with scikit-learn, labels last."""
    package = importlib.util.find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    file = Path(package.origin).parent / "datasets" / "data" / EMBEDDED[name]
    rows: np.ndarray = np.loadtxt(file, delimiter=",", skiprows=int(file.suffix == ".csv"))
    return rows


def find(place: str, name: str) -> Path | None:
    """Return the file of a LIBSVM set (place ``libsvm``) or of a text (``text``) in the data folder, None without."""
    stem, there = name if place == "libsvm" else f"{name}.txt", there_in(place)
    files = (f"{stem}{ending}" for ending in ENDINGS)
    return next(((folder() / place / n).absolute() for n in files if n in there), None)


def there_in(place: str) -> set[str]:
    """Return the names of what lies in a folder of the data folder. Raises InputError if it cannot be read."""
    inside = folder() / place
    with input_errors(DATASET_KEY, f"cannot read {inside}", "check the folder's permissions"):
        return {file.name for file in inside.iterdir()} if inside.is_dir() else set()


def fetch(name: str) -> Path:
    """Return the path of the LIBSVM set ``name`` after downloading it into the data folder.

    Raises InputError naming the folder and the file to put there where it cannot be fetched.
    """
    url = LIBSVM_SETS[name].url
    target = folder() / "libsvm" / url.rsplit("/", 1)[1]
    fix = f"put the file {target.name} into {target.parent} (from {url})"
    with input_errors(DATASET_KEY, f"cannot download {name}", fix):
        return download(url, target, name)


# Images ---------------------------------------------------------------------------------------------

MNIST_SITE = "https://ossci-datasets.s3.amazonaws.com/mnist/"
FASHION_SITE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
TORONTO = "https://www.cs.toronto.edu/~kriz/"
# The names of torchvision's classes mean the same data.
SPELLINGS = {"MNIST": "mnist", "FashionMNIST": "fashion_mnist"}
SPELLINGS |= {"CIFAR10": "cifar10", "CIFAR100": "cifar100"}


class ImageSet(NamedTuple):
    """How many images there are, their shape (C, H, W), how many classes, and files in the data folder.

    url: the site of the files, or of an archive of them with its ``checksum``; empty without one.
    """

    train: int
    test: int
    shape: tuple[int, int, int]
    classes: int
    files: tuple[str, ...] = ()
    url: str = ""
    checksum: str = ""


PARTS = ("train", "t10k")
RAW = [f"raw/{part}-{x}-ubyte.gz" for part in PARTS for x in ("images-idx3", "labels-idx1")]
BATCHES = (*(f"data_batch_{j}" for j in range(1, 6)), "test_batch")  # of CIFAR-10
TEN = tuple(f"cifar-10-batches-bin/{batch}.bin" for batch in BATCHES)
HUNDRED = ("cifar-100-binary/train.bin", "cifar-100-binary/test.bin")
GREY, COLOUR = (1, 28, 28), (3, 32, 32)
TEN_SITE = (f"{TORONTO}cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530")
HUNDRED_SITE = (f"{TORONTO}cifar-100-binary.tar.gz", "md5:03b5dce01913d631647c71ecec9e9cb8")
PART = "cifar10/cifar10_exact_prefix_subset.npz"
MNIST, FASHION = (tuple(f"{name}/{file}" for file in RAW) for name in ("MNIST", "FashionMNIST"))
IMAGE_SETS = {
    "cifar10": ImageSet(50000, 10000, COLOUR, 10, TEN, *TEN_SITE),
    "cifar100": ImageSet(50000, 10000, COLOUR, 100, HUNDRED, *HUNDRED_SITE),
    "cifar10_part": ImageSet(5085, 1017, COLOUR, 10, (PART,)),
    "digits": ImageSet(1797, 0, (1, 8, 8), 10),
    "fashion_mnist": ImageSet(60000, 10000, GREY, 10, FASHION, FASHION_SITE),
    "mnist": ImageSet(60000, 10000, GREY, 10, MNIST, MNIST_SITE),
}


def needed(name: str) -> list[Path]:
    """Return the files of the images of that name, after fetching those that are not there.

    Raises InputError that names the files and the folder to put them in where they cannot be fetched.
    """
    images = IMAGE_SETS[name]
    absent = [file for file in images.files if present(file) is None]
    if absent:
        fix = f"put {', '.join(absent)} into {folder()}"
        if not images.url:
            raise data_error(f"{name} is not there and has no site to fetch it from", fix)
        with input_errors(DATASET_KEY, f"cannot download {name}", f"{fix} (from {images.url})"):
            _fetch_images(name, images, absent)
    return [path for file in images.files if (path := present(file)) is not None]


def _fetch_images(name: str, images: ImageSet, absent: list[str]) -> None:
    folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder(), prefix=f".{name}-") as spare:
        place = Path(spare)
        if images.checksum:
            archive = folder() / images.url.rsplit("/", 1)[1]
            with tarfile.open(download(images.url, archive, name, images.checksum)) as packed:
                members = [packed.getmember(file) for file in absent]  # and nothing else
                packed.extractall(place, members, filter="data")
        else:
            from torchvision import datasets

            getattr(datasets, absent[0].split("/")[0])(root=place, download=True)
        for file in absent:
            (folder() / file).parent.mkdir(parents=True, exist_ok=True)
            os.replace(place / file, folder() / file)


# Texts and views ------------------------------------------------------------------------------------

TEXTS = ("shakespeare", "wikitext2_test", "wikitext2_valid")
VIEW_LISTS = ("raw_features.mat", "trainset_txt_img_cat.list", "testset_txt_img_cat.list")
VIEW_FILES = tuple(f"wikipedia_image_text/{name}" for name in VIEW_LISTS)
ARTICLES = 2173  # for training, in both sets
VIEW_SETS = {
    "wikipedia": {"image": "I", "text": "T"},
    "wikipedia_tfidf": {"image": "I", "text": "T_tfidf"},
}
"""Data sets of views: how the names of the arrays of each view begin in the file."""


# Downloads ------------------------------------------------------------------------------------------


def download(url: str, target: Path, name: str, checksum: str | None = None) -> Path:
    """Fetch ``url`` to ``target``, which appears by an atomic rename; return ``target``.

    name: what a terminal calls it meanwhile. A file that is there with the right checksum is left alone. Raises
    OSError (requests' errors are) or ValueError where it cannot be fetched or has another checksum.
    """
    import pooch

    target.parent.mkdir(parents=True, exist_ok=True)
    pooch.get_logger().setLevel("WARNING")
    downloader = pooch.HTTPDownloader(timeout=SECONDS)
    with terminal.console(stderr=True).status(f"downloading {name}"):
        pooch.retrieve(url, checksum, fname=target.name, path=target.parent, downloader=downloader)
    return target
