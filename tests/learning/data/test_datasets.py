from __future__ import annotations

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import warnings
from pathlib import Path

import numpy as np
import pytest

from tramfl.learning.data import releases
from tramfl.learning.data.datasets import Dataset, data_folder, load_dataset
from tramfl.learning.data.partition import LABEL_COUNTS
from tramfl.learning.data.releases import IDX_FILES, UnofficialData
from tramfl.notation import BadInput

RNG = np.random.default_rng(7)


def idx(array: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    header = bytes((0, 0, 8, array.ndim)) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return gzip.compress(header + array.tobytes(), compresslevel=1)


def write_mnist(folder: Path, train: int = 30, test: int = 20) -> None:
    folder.mkdir(parents=True)
    for name, count in zip(IDX_FILES, (train, train, test, test), strict=True):
        shape = (count, 28, 28) if "idx3" in name else (count,)
        (folder / name).write_bytes(idx(RNG.integers(0, 10, shape, dtype=np.uint8)))


@pytest.fixture
def small_cifar10(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """CIFAR-10 with batches of twelve records."""
    monkeypatch.setattr(releases, "CIFAR10_BYTES", 12 * releases.CIFAR10_RECORD)
    batches = {}
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        records = RNG.integers(0, 256, (12, releases.CIFAR10_RECORD), dtype=np.uint8)
        records[:, 0] = np.arange(12) % 10
        batches[name] = records.tobytes()
    return batches


def write_archive(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def test_digits_needs_no_file_and_holds_the_counts_that_are_known_without_it(tmp_path: Path) -> None:
    digits = load_dataset("digits", tmp_path)
    assert digits.input_shape == (1, 8, 8)
    assert tuple(digits.label_counts) == LABEL_COUNTS["digits"]
    assert len(digits.train_labels) + len(digits.test_labels) == 1797
    assert np.bincount(digits.test_labels).min() >= 34
    assert digits.classes == tuple("0123456789")


def test_digits_without_scikit_learn_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(BadInput, match=r"comes with scikit-learn: install tramfl\[torch\]"):
        load_dataset("digits", tmp_path)


def test_digits_is_split_the_same_every_time(tmp_path: Path) -> None:
    first, second = load_dataset("digits", tmp_path), load_dataset("digits", tmp_path)
    np.testing.assert_array_equal(first.test_images, second.test_images)


def test_files_that_are_there_are_used_and_the_unofficial_ones_named(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    with pytest.warns(UnofficialData, match=r"train-images-idx3-ubyte\.gz"):
        mnist = load_dataset("mnist", tmp_path, download=False)
    assert mnist.train_images.shape == (30, 1, 28, 28)
    assert mnist.test_labels.shape == (20,)
    assert mnist.train_labels.dtype == np.int64


def test_official_content_packed_anew_is_no_cause_for_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path / "mnist")
    contents = (gzip.decompress((tmp_path / "mnist" / name).read_bytes()) for name in IDX_FILES)
    a, b, c, d = (hashlib.md5(content, usedforsecurity=False).hexdigest() for content in contents)
    official = releases.IdxRelease(("http://127.0.0.1:9/",), ("", "", "", ""), (a, b, c, d))
    monkeypatch.setitem(releases.IDX_RELEASES, "mnist", official)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_dataset("mnist", tmp_path, download=False)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_without_files_one_sentence_says_which_go_where(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        load_dataset(name, tmp_path, download=False)
    message = str(caught.value)
    assert all(file in message for file in IDX_FILES)
    assert str(tmp_path / name) in message
    assert "TRAMFL_DATA" in message
    assert "\n" not in message


def test_without_internet_the_sentence_also_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unreachable = releases.IdxRelease(("http://127.0.0.1:9/",), ("", "", "", ""), ("", "", "", ""))
    monkeypatch.setitem(releases.IDX_RELEASES, "mnist", unreachable)
    with pytest.raises(BadInput, match=r"cannot be fetched \(http://127\.0\.0\.1:9/train-images.*refused"):
        load_dataset("mnist", tmp_path)


def test_only_the_missing_files_are_asked_for(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / IDX_FILES[3]).unlink()
    with pytest.raises(BadInput, match=r"^mnist needs t10k-labels-idx1-ubyte\.gz in "):
        load_dataset("mnist", tmp_path, download=False)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda packed: packed[: len(packed) // 2], "truncated or not a gzip file"),
        (lambda packed: b"<html>not found</html>", "truncated or not a gzip file"),
        (lambda packed: gzip.compress(b"something else entirely"), "not an idx file"),
        (lambda packed: gzip.compress(gzip.decompress(packed)[:-5]), "announces 23520 bytes of data and holds 23515"),
        (lambda packed: gzip.compress(gzip.decompress(packed) + b"x"), "announces 23520"),
    ],
)
def test_a_damaged_idx_file_is_named_never_half_read(damage: object, complaint: str, tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    path = tmp_path / "mnist" / IDX_FILES[0]
    assert callable(damage)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BadInput, match=complaint) as caught:
        load_dataset("mnist", tmp_path, download=False)
    assert str(path) in str(caught.value)


def test_labels_that_do_not_match_the_images_are_named(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / IDX_FILES[1]).write_bytes(idx(np.zeros(29, dtype=np.uint8)))
    with pytest.raises(BadInput, match=r"train-labels.*29 labels for 30 images"):
        load_dataset("mnist", tmp_path, download=False)


def test_cifar10_is_read_from_its_binary_batches(tmp_path: Path, small_cifar10: dict[str, bytes]) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name, content in small_cifar10.items():
        (folder / name).write_bytes(content)
    with pytest.warns(UnofficialData, match="test_batch"):
        cifar10 = load_dataset("cifar10", tmp_path, download=False)
    assert cifar10.train_images.shape == (60, 3, 32, 32)
    assert cifar10.train_images[0].tobytes() == small_cifar10["data_batch_1.bin"][1 : releases.CIFAR10_RECORD]
    assert cifar10.classes[5] == "dog"


def test_the_archive_beside_the_folder_is_unpacked_and_nothing_else_in_it(
    tmp_path: Path, small_cifar10: dict[str, bytes]
) -> None:
    members = {f"cifar-10-batches-bin/{name}": content for name, content in small_cifar10.items()}
    write_archive(tmp_path / "data" / "cifar-10-binary.tar.gz", {"../escaped": b"x", **members})
    with pytest.warns(UnofficialData):
        load_dataset("cifar10", tmp_path / "data", download=False)
    assert not (tmp_path / "escaped").exists()
    assert sorted(p.name for p in (tmp_path / "data" / "cifar-10-batches-bin").iterdir()) == sorted(small_cifar10)


@pytest.mark.parametrize("fault", ["short batch", "link", "missing batch", "cut archive"])
def test_a_wrong_archive_is_named(fault: str, tmp_path: Path, small_cifar10: dict[str, bytes]) -> None:
    archive = tmp_path / "cifar-10-binary.tar.gz"
    members = {f"cifar-10-batches-bin/{name}": content for name, content in small_cifar10.items()}
    if fault == "short batch":
        members["cifar-10-batches-bin/data_batch_2.bin"] = b"short"
    if fault == "missing batch":
        del members["cifar-10-batches-bin/test_batch.bin"]
    write_archive(archive, members)
    if fault == "link":
        with tarfile.open(archive, "w:gz") as opened:
            link = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            opened.addfile(link)
    if fault == "cut archive":
        archive.write_bytes(archive.read_bytes()[:5000])
    with pytest.raises(BadInput, match=r"cifar-10-binary\.tar\.gz"):
        load_dataset("cifar10", tmp_path, download=False)


@pytest.mark.parametrize(("content", "complaint"), [(b"short", "5 bytes"), (None, "label above 9")])
def test_a_wrong_batch_is_named(
    content: bytes | None, complaint: str, tmp_path: Path, small_cifar10: dict[str, bytes]
) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    small_cifar10["data_batch_3.bin"] = content or b"\xff" * len(small_cifar10["data_batch_3.bin"])
    for name, batch in small_cifar10.items():
        (folder / name).write_bytes(batch)
    with pytest.raises(BadInput, match=rf"data_batch_3\.bin has (a )?{complaint}"):
        load_dataset("cifar10", tmp_path, download=False)


def test_an_npz_archive_is_a_data_set(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    images = RNG.random((12, 3, 6, 6))
    np.savez(
        path, train_images=images, train_labels=np.arange(12) % 3, test_images=images[:4], test_labels=[0, 1, 2, 0]
    )
    own = load_dataset(f"npz:{path}", tmp_path)
    assert own.train_images.dtype == np.float32
    assert own.classes == ("0", "1", "2")
    np.testing.assert_allclose(own.mean, images.mean(axis=(0, 2, 3)), rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"test_labels": None}, r"lacks test_labels"),
        ({"train_images": np.zeros((12, 5))}, r"train_images has shape \(12, 5\)"),
        ({"train_images": np.zeros((12, 1, 6, 6), dtype=np.int32)}, r"train_images is int32"),
        ({"train_images": np.full((12, 1, 6, 6), np.nan)}, r"train_images has a value that is not finite"),
        ({"train_labels": np.zeros(11, dtype=int)}, r"train_labels has shape \(11,\)"),
        ({"train_labels": np.full(12, -1)}, r"train_labels must be whole numbers from 0"),
        ({"train_labels": np.full(12, 0.5)}, r"train_labels must be whole numbers from 0"),
        ({"test_images": np.zeros((4, 1, 7, 7), dtype=np.uint8)}, r"test_images are uint8 of \(1, 7, 7\)"),
        ({"train_images": np.array([{}], dtype=object)}, r"cannot be read as an npz archive of plain arrays"),
    ],
)
def test_an_npz_archive_that_does_not_fit_is_refused_by_name(
    change: dict[str, object], complaint: str, tmp_path: Path
) -> None:
    arrays: dict[str, object] = {
        "train_images": np.zeros((12, 1, 6, 6), dtype=np.uint8),
        "train_labels": np.arange(12) % 3,
        "test_images": np.zeros((4, 1, 6, 6), dtype=np.uint8),
        "test_labels": np.zeros(4, dtype=int),
    }
    arrays.update(change)
    path = tmp_path / "own.npz"
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=complaint) as caught:
        load_dataset(f"npz:{path}", tmp_path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short", b"no archive"])
def test_a_broken_npz_archive_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "own.npz").write_bytes(content)
    with pytest.raises(BadInput, match=r"own\.npz"):
        load_dataset(f"npz:{tmp_path / 'own.npz'}", tmp_path)
    with pytest.raises(BadInput, match="no such file"):
        load_dataset(f"npz:{tmp_path / 'none.npz'}", tmp_path)


OWN_MODULE = """
import numpy as np
from tramfl.learning.data.datasets import Dataset
images, labels = np.zeros((6, 1, 4, 4), np.uint8), np.arange(6) % 2
def factory(data_dir): return Dataset.from_arrays(str(data_dir), images, labels, images, labels)
class Holder:
    train_images = test_images = images
    train_labels = test_labels = labels
    classes = ("cat", "dog")
ready = factory("ready")
holder = Holder()
number = 3
"""


def test_the_users_own_data_may_be_a_data_set_a_factory_or_an_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_data_module.py").write_text(OWN_MODULE)
    monkeypatch.chdir(tmp_path)
    assert load_dataset("own_data_module:ready", tmp_path).name == "ready"
    assert load_dataset("own_data_module:factory", tmp_path).name == str(tmp_path)
    assert load_dataset("own_data_module:holder", tmp_path).classes == ("cat", "dog")
    assert load_dataset("own_data_module:Holder", tmp_path).std == (1.0,)
    with pytest.raises(BadInput, match="lacks train_images"):
        load_dataset("own_data_module:number", tmp_path)
    with pytest.raises(BadInput, match="has no 'nothing'"):
        load_dataset("own_data_module:nothing", tmp_path)
    with pytest.raises(BadInput, match="cannot be imported"):
        load_dataset("no_such_module_here:data", tmp_path)


def test_an_unknown_name_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"'imagenet': use digits, mnist, fashion-mnist, cifar10, npz:PATH or"):
        load_dataset("imagenet", tmp_path)


def test_more_labels_than_class_names_are_refused() -> None:
    images, labels = np.zeros((3, 1, 4, 4), np.uint8), np.arange(3)
    with pytest.raises(BadInput, match="there is a label 2, but classes names only 2"):
        Dataset.from_arrays("own", images, labels, images, labels, classes=("a", "b"))


def test_the_data_folder_is_the_one_named_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAMFL_DATA", str(tmp_path / "variable"))
    assert data_folder(tmp_path / "explicit") == tmp_path / "explicit"
    assert data_folder(None) == tmp_path / "variable"
    monkeypatch.delenv("TRAMFL_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_folder(None) == tmp_path / "tramfl"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_folder(None) == Path.home() / ".cache" / "tramfl"


def test_data_and_partitions_can_be_had_without_torch_or_sklearn() -> None:
    code = (
        "import pathlib, sys, tramfl.learning, tramfl.learning.data.datasets, tramfl.learning.data.partition;"
        "tramfl.learning.data.datasets.load_dataset('digits', pathlib.Path('nowhere'));"
        "sys.exit(any(m in sys.modules for m in ('torch', 'sklearn', 'safetensors')))"
    )
    assert subprocess.run([sys.executable, "-c", code], env=dict(os.environ), check=False).returncode == 0


def test_every_release_is_fetched_over_https_and_checked_with_sha256() -> None:
    mirrors = [mirror for release in releases.IDX_RELEASES.values() for mirror in release.mirrors]
    assert all(mirror.startswith("https://") for mirror in (*mirrors, *releases.CIFAR10_MIRRORS))
    sums = [digest for release in releases.IDX_RELEASES.values() for digest in release.packed_sha256]
    assert all(len(bytes.fromhex(digest)) == 32 for digest in (*sums, releases._CIFAR10_ARCHIVE_SHA256))
