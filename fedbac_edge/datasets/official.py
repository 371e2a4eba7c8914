"""The field's data sets as their authors publish them: which files, from where, with which hash, and where
they lie on this machine.

Sizes and SHA-256 are those of TensorFlow Datasets' lists; the MD5 sums on the sets' own pages belong to the
same files.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fedbac_edge.datasets.samples import DataError

FASHION = "fashion-mnist"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
"""Debian's and Ubuntu's package dataset-fashion-mnist: the same images, packed anew."""


@dataclass(frozen=True)
class File:
    """One published file; `size` in bytes."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class DataSet:
    """`sources`: addresses of folders, tried in this order; each holds all `files`."""

    about: str
    sources: tuple[str, ...]
    files: tuple[File, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def at(self, folder: Path) -> Path:
        """What to give as --data: the archive where one file holds everything, else the folder."""
        return folder / self.files[0].name if len(self.files) == 1 else folder

    def complete(self, folder: Path) -> bool:
        """Whether all files lie in `folder`: by name and size, the hash was held to when they came."""
        return all(
            (folder / file.name).is_file() and (folder / file.name).stat().st_size == file.size
            for file in self.files
        )


DATA_SETS: dict[str, DataSet] = {
    FASHION: DataSet(
        about="70,000 gray pictures of clothes, 28x28, 10 classes",
        sources=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        files=(
            File(
                "train-images-idx3-ubyte.gz",
                26_421_880,
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            ),
            File(
                "train-labels-idx1-ubyte.gz",
                29_515,
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            ),
            File(
                "t10k-images-idx3-ubyte.gz",
                4_422_102,
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            ),
            File(
                "t10k-labels-idx1-ubyte.gz",
                5_148,
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
        ),
    ),
    "mnist": DataSet(
        about="70,000 gray digits, 28x28, 10 classes",
        # Two stores of the files: the first address of MNIST no longer serves all clients.
        sources=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        files=(
            File(
                "train-images-idx3-ubyte.gz",
                9_912_422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            File(
                "train-labels-idx1-ubyte.gz",
                28_881,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            File(
                "t10k-images-idx3-ubyte.gz",
                1_648_877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            File(
                "t10k-labels-idx1-ubyte.gz",
                4_542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
    ),
    "cifar10": DataSet(
        about="60,000 colour pictures, 32x32, 10 classes",
        sources=("https://www.cs.toronto.edu/~kriz/",),
        files=(
            File(
                "cifar-10-binary.tar.gz",
                170_052_171,
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
    ),
    "cifar100": DataSet(
        about="60,000 colour pictures, 32x32, 100 classes",
        sources=("https://www.cs.toronto.edu/~kriz/",),
        files=(
            File(
                "cifar-100-binary.tar.gz",
                168_513_733,
                "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            ),
        ),
    ),
    "svhn": DataSet(
        about="99,289 colour house numbers, 32x32, 10 classes; reading it needs SciPy",
        sources=("http://ufldl.stanford.edu/housenumbers/",),
        files=(
            File(
                "train_32x32.mat",
                182_040_794,
                "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            ),
            File(
                "test_32x32.mat",
                64_275_384,
                "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
            ),
        ),
    ),
}


def home(name: str) -> Path:
    """The folder into which a data set is fetched: below `FEDBAC_DATASETS`, or the user's own data.

    Raises DataError for a user that has no home folder.
    """
    base = os.environ.get("FEDBAC_DATASETS")
    if base:
        return Path(base) / name
    try:
        base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    except RuntimeError:
        raise DataError(name, "this user has no home folder to keep it in", "Set FEDBAC_DATASETS") from None
    return Path(base) / "fedbac" / name


def find(name: str) -> Path | None:
    """What to read of a known data set where it lies on this machine: a folder or an archive; or None."""
    known = DATA_SETS[name]
    try:
        folder = home(name)
    except DataError:
        folder = None
    if name == FASHION:
        chosen = os.environ.get("FEDBAC_FASHION_MNIST")
        for place in (Path(chosen),) if chosen else (DEBIAN, folder):
            if place is not None and (place / known.files[0].name).is_file():
                return place
        return None
    return known.at(folder) if folder is not None and known.complete(folder) else None


def locate(name: str, option: str = "--data") -> Path:
    """As `find`; raises DataError that says how to get it, or to give a place of one's own as `option`."""
    found = find(name)
    if found is not None:
        return found
    where: Path | str = home(name)
    remedy = f"`fedbac data get {name}` fetches it; or say where it lies with {option} PATH"
    if name == FASHION:
        where = os.environ.get("FEDBAC_FASHION_MNIST") or where
        remedy = (
            "On Debian and Ubuntu: apt-get install dataset-fashion-mnist. Elsewhere `fedbac data get "
            f"{name}`, or put its four *-ubyte.gz files into a folder and set FEDBAC_FASHION_MNIST to it"
        )
    raise DataError(where, f"{name} is not there", remedy)
