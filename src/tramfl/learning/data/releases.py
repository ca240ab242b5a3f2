"""The published data sets as files: where they come from, what must be in them, and how they are read.

MNIST and Fashion-MNIST are four gzipped idx files each, CIFAR-10 is its binary release. Files that are
there are used as they are; one that differs from the official release earns a warning, one that is
truncated or of another kind is named and never half-read. What is fetched must have the SHA-256 of the release.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tramfl.learning.data.download import DownloadFailed, Report, download
from tramfl.notation import BadInput

Bytes = NDArray[np.uint8]
Arrays = tuple[Bytes, Bytes, Bytes, Bytes]
"""Training images and labels, test images and labels."""

DATA_VARIABLE = "TRAMFL_DATA"
_REPLACE_IT = "put the right file there, or remove it to have it fetched anew."


class UnofficialData(UserWarning):
    """A file in the data folder is not the one its authors published; it is used as it is."""


@dataclass(frozen=True)
class IdxRelease:
    """Four idx files, and addresses that offer them."""

    mirrors: tuple[str, ...]
    packed_sha256: tuple[str, str, str, str]
    """Of the .gz files as published."""
    content_md5: tuple[str, str, str, str]
    """Of what they unpack to: a file that was only compressed anew is official too."""


IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
IDX_RELEASES = {
    "mnist": IdxRelease(
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        (
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
        (
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        ),
    ),
    "fashion-mnist": IdxRelease(
        (
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        (
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
        (
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
    ),
}

CIFAR10_FOLDER = "cifar-10-batches-bin"
CIFAR10_ARCHIVE = "cifar-10-binary.tar.gz"
CIFAR10_MIRRORS = ("https://www.cs.toronto.edu/~kriz/",)
_CIFAR10_ARCHIVE_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
_CIFAR10_MD5 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
CIFAR10_RECORD = 1 + 3 * 32 * 32
"""Bytes a record: the label, then red, green and blue."""
CIFAR10_BYTES = 10_000 * CIFAR10_RECORD
"""Bytes a batch."""


def read_idx_release(name: str, data_dir: Path, may_download: bool, report: Report | None) -> Arrays:
    """The arrays of `mnist` or `fashion-mnist`, from `data_dir/name`."""
    release, folder = IDX_RELEASES[name], data_dir / name
    missing = [i for i, file in enumerate(IDX_FILES) if not (folder / file).exists()]
    if missing:
        need = f"{name} needs {', '.join(IDX_FILES[i] for i in missing)} in {folder}"
        for i in missing:
            how = _Download(may_download, report)
            _fetch(folder / IDX_FILES[i], release.packed_sha256[i], release.mirrors, how, need=need)
    train_images, train_labels, test_images, test_labels = (_read_idx(folder / file) for file in IDX_FILES)
    for images, labels, file in (
        (train_images, train_labels, IDX_FILES[1]),
        (test_images, test_labels, IDX_FILES[3]),
    ):
        if len(images) != len(labels):
            raise BadInput(f"{folder / file} has {len(labels)} labels for {len(images)} images; {_REPLACE_IT}")
    _warn_of(name, [folder / file for i, file in enumerate(IDX_FILES) if not _official(folder / file, release, i)])
    return train_images, train_labels, test_images, test_labels


def read_cifar10(data_dir: Path, may_download: bool, report: Report | None) -> Arrays:
    """CIFAR-10's arrays, from `data_dir/cifar-10-batches-bin` or the archive beside it."""
    folder, archive = data_dir / CIFAR10_FOLDER, data_dir / CIFAR10_ARCHIVE
    if any(not (folder / name).exists() for name in _CIFAR10_MD5):
        fetched = not archive.exists()
        if fetched:
            need = f"cifar10 needs {', '.join(_CIFAR10_MD5)} in {folder}, or {CIFAR10_ARCHIVE} in {data_dir}"
            how = _Download(may_download, report)
            _fetch(archive, _CIFAR10_ARCHIVE_SHA256, CIFAR10_MIRRORS, how, need=need)
        _unpack_cifar10(archive, folder)
        if fetched:
            archive.unlink()
    batches = [_read_cifar10_batch(folder / name) for name in _CIFAR10_MD5]
    _warn_of(
        "cifar10", [folder / name for name, md5 in _CIFAR10_MD5.items() if _md5((folder / name).read_bytes()) != md5]
    )
    train, test = np.concatenate(batches[:-1]), batches[-1]
    train_images, test_images = (records[:, 1:].reshape(-1, 3, 32, 32) for records in (train, test))
    return train_images, train[:, 0], test_images, test[:, 0]


def _read_idx(path: Path) -> Bytes:
    """The array in one gzipped idx file of bytes; whole or not at all."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{path} is truncated or not a gzip file ({error}); {_REPLACE_IT}") from None
    dimensions = 3 if "idx3" in path.name else 1
    header = 4 + 4 * dimensions
    if content[:4] != bytes((0, 0, 8, dimensions)) or len(content) < header:
        raise BadInput(f"{path} is not an idx file of bytes with {dimensions} axes; {_REPLACE_IT}")
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", dimensions, 4))
    held, announced = len(content) - header, int(np.prod(shape))
    if held != announced:
        raise BadInput(f"{path} announces {announced} bytes of data and holds {held}; {_REPLACE_IT}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _official(path: Path, release: IdxRelease, which: int) -> bool:
    packed = path.read_bytes()
    if hashlib.sha256(packed).hexdigest() == release.packed_sha256[which]:
        return True
    return _md5(gzip.decompress(packed)) == release.content_md5[which]


def _md5(content: bytes) -> str:
    """How the authors published what is in their files; a match only saves the user a warning."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _unpack_cifar10(archive: Path, folder: Path) -> None:
    """Take the six batches out of the archive, by name and size, and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(archive) as opened:
            for name in _CIFAR10_MD5:
                member = opened.getmember(f"{CIFAR10_FOLDER}/{name}")
                stream = opened.extractfile(member) if member.isreg() else None
                if stream is None or member.size != CIFAR10_BYTES:
                    raise BadInput(f"{archive}: {name} is not a file of {CIFAR10_BYTES} bytes; {_REPLACE_IT}")
                part = folder / f"{name}.part"
                part.write_bytes(stream.read())
                os.replace(part, folder / name)
    except KeyError:
        raise BadInput(f"{archive} lacks one of {', '.join(_CIFAR10_MD5)}; {_REPLACE_IT}") from None
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise BadInput(f"{archive} cannot be unpacked into {folder} ({error}); {_REPLACE_IT}") from None


def _read_cifar10_batch(path: Path) -> Bytes:
    content = path.read_bytes()
    if len(content) != CIFAR10_BYTES:
        raise BadInput(f"{path} has {len(content)} bytes where a batch has {CIFAR10_BYTES}; {_REPLACE_IT}")
    records = np.frombuffer(content, np.uint8).reshape(-1, CIFAR10_RECORD)
    if records[:, 0].max() > 9:
        raise BadInput(f"{path} has a label above 9, so it is not a batch of CIFAR-10; {_REPLACE_IT}")
    return records


@dataclass(frozen=True)
class _Download:
    """Whether and how missing files may be fetched."""

    allowed: bool
    report: Report | None


def _fetch(target: Path, sha256: str, mirrors: Sequence[str], how: _Download, *, need: str) -> None:
    """Download one missing file, or say in one sentence what is needed where."""
    remedy = f"put them there (from {mirrors[0]}), or let {DATA_VARIABLE} or --data-dir name a folder with them."
    if not how.allowed:
        raise BadInput(f"{need}: {remedy}")
    try:
        download([mirror + target.name for mirror in mirrors], target, sha256=sha256, report=how.report)
    except DownloadFailed as failure:
        raise BadInput(f"{need}, which cannot be fetched ({failure}): {remedy}") from None
    except OSError as error:
        raise BadInput(f"{target} cannot be written: {error.strerror or error}.") from None


def _warn_of(name: str, unofficial: Sequence[Path]) -> None:
    if unofficial:
        files = ", ".join(path.name for path in unofficial)
        text = f"{name}: not the official release, but used as it is: {files} in {unofficial[0].parent}."
        warnings.warn(text, UnofficialData, stacklevel=4)
