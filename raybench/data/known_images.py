"""The images known by name: how many there are, where they lie in the data folder, fetching them."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from raybench.core.errors import InputError
from raybench.data.download import download
from raybench.data.known import folder

DATASET_KEY = "problem.dataset"
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)
TORONTO = "https://www.cs.toronto.edu/~kriz/"
# The names of torchvision's classes mean the same data.
SPELLINGS = {
    "MNIST": "mnist",
    "FashionMNIST": "fashion_mnist",
    "CIFAR10": "cifar10",
    "CIFAR100": "cifar100",
}


@dataclass(frozen=True)
class KnownImages:
    """How many images there are, their shape (C, H, W), how many classes, and files in the data folder.

    url: the site of the files, or of an archive of them with its ``checksum``; empty where there is
    none.
    """

    train: int
    test: int
    shape: tuple[int, int, int]
    classes: int
    files: tuple[str, ...] = ()
    url: str = ""
    checksum: str = ""


def there(name: str) -> Path | None:
    """Return a file of the data folder if it is there; for a ``.gz`` an unpacked one will do."""
    file = folder() / name
    plain = file.with_suffix("") if file.suffix == ".gz" else file
    return next((path for path in (file, plain) if path.is_file()), None)


def _table() -> dict[str, KnownImages]:
    grey, colour = (1, 28, 28), (3, 32, 32)
    raw = tuple(
        f"raw/{part}-{what}-ubyte.gz"
        for part in ("train", "t10k")
        for what in ("images-idx3", "labels-idx1")
    )
    mnist, fashion = (tuple(f"{name}/{n}" for n in raw) for name in ("MNIST", "FashionMNIST"))
    ten = tuple(
        f"cifar-10-batches-bin/{n}.bin"
        for n in (*(f"data_batch_{j}" for j in range(1, 6)), "test_batch")
    )
    hundred = ("cifar-100-binary/train.bin", "cifar-100-binary/test.bin")
    part, jpeg = "cifar10/cifar10_exact_prefix_subset.npz", "cifar10/cifar10-images-jpeg.tar.xz"
    packed = {
        "cifar10": ("cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530"),
        "cifar100": ("cifar-100-binary.tar.gz", "md5:03b5dce01913d631647c71ecec9e9cb8"),
    }
    urls = {name: (TORONTO + file, checksum) for name, (file, checksum) in packed.items()}
    return {
        "cifar10": KnownImages(50000, 10000, colour, 10, ten, *urls["cifar10"]),
        "cifar100": KnownImages(50000, 10000, colour, 100, hundred, *urls["cifar100"]),
        "cifar10_jpeg": KnownImages(50000, 10000, colour, 10, (jpeg,)),
        "cifar10_part": KnownImages(5085, 1017, colour, 10, (part,)),
        "digits": KnownImages(1797, 0, (1, 8, 8), 10),
        "fashion_mnist": KnownImages(60000, 10000, grey, 10, fashion, MIRRORS[1]),
        "mnist": KnownImages(60000, 10000, grey, 10, mnist, MIRRORS[0]),
    }


KNOWN_IMAGES = _table()


def needed(name: str) -> list[Path]:
    """Return the files of the images of that name, after fetching those that are not there.

    What is there is left alone; what is fetched appears by a rename. Raises InputError that names the
    files and the folder to put them in where they cannot be fetched.
    """
    known = KNOWN_IMAGES[name]
    absent = [file for file in known.files if there(file) is None]
    if absent:
        _fetch(name, known, absent)
    return [path for file in known.files if (path := there(file)) is not None]


def _fetch(name: str, known: KnownImages, absent: list[str]) -> None:
    fix = f"put {', '.join(absent)} into {folder()}" + (f" (from {known.url})" if known.url else "")
    if not known.url:
        raise InputError.of(
            DATASET_KEY, f"{name} is not there and has no site to fetch it from", fix
        )
    try:
        folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder(), prefix=f".{name}-") as spare:
            place = Path(spare)
            if known.checksum:
                _unpack(_archive(name, known), absent, place)
            else:
                _torchvision(absent[0].split("/")[0], place)
            for file in absent:
                (folder() / file).parent.mkdir(parents=True, exist_ok=True)
                os.replace(place / file, folder() / file)
    # requests' errors and those of files are OSErrors; torchvision raises RuntimeError for its own.
    except (OSError, EOFError, ValueError, KeyError, RuntimeError, tarfile.TarError) as error:
        what = f"cannot download {name} ({type(error).__name__})"
        raise InputError.of(DATASET_KEY, what, fix) from error


def _torchvision(name: str, place: Path) -> None:
    from torchvision import datasets

    getattr(datasets, name)(root=place, download=True)


def _archive(name: str, known: KnownImages) -> Path:
    """Return the archive of the files: one in the data folder with the right checksum, or fetched."""
    return download(known.url, folder() / known.url.rsplit("/", 1)[1], name, known.checksum)


def _unpack(archive: Path, names: list[str], place: Path) -> None:
    """Write the members of these names, and nothing else that an archive may hold."""
    with tarfile.open(archive) as packed:
        for name in names:
            stream = packed.extractfile(name)
            if stream is None:
                raise ValueError(f"{name} is no file")
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            with stream, (place / name).open("wb") as out:
                shutil.copyfileobj(stream, out)
