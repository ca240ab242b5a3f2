from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from tramfl.circulation.phases import Copy
from tramfl.runtime.weights import store as module
from tramfl.runtime.weights.store import StoreFull, WeightStore


def put(store: WeightStore, content: bytes, round_: int = 1, epoch: int = 1) -> Copy:
    staged = store.scratch()
    staged.write_bytes(content)
    copy = Copy(hashlib.sha256(content).hexdigest(), round_, epoch)
    store.put(staged, copy)
    return copy


def names(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_what_was_put_is_there_after_opening_again(tmp_path: Path) -> None:
    first, second = put(WeightStore(tmp_path), b"one", 1), put(WeightStore(tmp_path), b"two", 2)
    store = WeightStore(tmp_path)
    assert store.copies() == (second, first)
    path = store.path(first.digest)
    assert path is not None
    assert path.read_bytes() == b"one"
    assert path.name == f"1-1-{first.digest}.safetensors"
    assert store.damaged == ()


def test_nothing_is_seen_until_it_is_renamed_and_content_is_durable_before_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = WeightStore(tmp_path)
    steps: list[str] = []
    real_sync, real_rename = os.fsync, os.rename

    def rename(*paths: Path) -> None:
        steps.append("rename")
        real_rename(*paths)

    def fsync(file: int) -> None:
        steps.append(os.readlink(f"/proc/self/fd/{file}"))
        real_sync(file)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    put(store, b"one")
    assert steps == [str(tmp_path / "incoming" / "0.new"), "rename", str(tmp_path)]


def test_a_crash_before_the_rename_leaves_nothing_that_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = WeightStore(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lambda *paths: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            put(store, b"one")
    assert store.copies() == ()
    again = WeightStore(tmp_path)
    assert again.copies() == ()
    assert names(tmp_path) == []


@pytest.mark.parametrize(("first", "then", "kept"), [((1, 1), (1, 2), (1, 2)), ((2, 1), (1, 9), (2, 1))])
def test_the_same_weights_are_kept_once_under_the_newer_round(
    tmp_path: Path, first: tuple[int, int], then: tuple[int, int], kept: tuple[int, int]
) -> None:
    store = WeightStore(tmp_path)
    for epoch, round_ in (first, then):
        copy = put(store, b"one", round_, epoch)
    assert store.copies() == (Copy(copy.digest, kept[1], kept[0]),)
    assert names(tmp_path) == [f"{kept[0]}-{kept[1]}-{copy.digest}.safetensors"]
    assert WeightStore(tmp_path).copies() == store.copies()


@pytest.mark.parametrize("round_", [1, 3, 5])
def test_weights_that_are_stored_may_be_put_again_from_where_they_are(tmp_path: Path, round_: int) -> None:
    store = WeightStore(tmp_path)
    copy = put(store, b"one", 3)
    path = store.path(copy.digest)
    assert path is not None
    store.put(path, Copy(copy.digest, round_, 1))
    assert store.copies() == (Copy(copy.digest, max(3, round_), 1),)
    assert WeightStore(tmp_path).copies() == store.copies()


def test_two_files_of_the_same_weights_become_one_when_opened(tmp_path: Path) -> None:
    copy = put(WeightStore(tmp_path), b"one", 3)
    (tmp_path / f"1-2-{copy.digest}.safetensors").write_bytes(b"one")
    assert WeightStore(tmp_path).copies() == (copy,)
    assert names(tmp_path) == [f"1-3-{copy.digest}.safetensors"]


@pytest.mark.parametrize("content", [b"", b"on", b"onE", b"one more"])
def test_a_file_that_is_not_what_its_name_says_is_set_aside_and_reported(tmp_path: Path, content: bytes) -> None:
    good, bad = put(WeightStore(tmp_path), b"two", 2), put(WeightStore(tmp_path), b"one")
    name = f"1-1-{bad.digest}.safetensors"
    (tmp_path / name).write_bytes(content)
    store = WeightStore(tmp_path)
    assert store.copies() == (good,)
    assert store.path(bad.digest) is None
    assert store.damaged == (name,)
    assert (tmp_path / f"{name}.damaged").read_bytes() == content
    assert WeightStore(tmp_path).damaged == ()


def test_discarded_weights_are_gone_and_unknown_ones_no_matter(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    one, two = put(store, b"one"), put(store, b"two", 2)
    store.discard([one.digest, "0" * 64])
    assert store.copies() == (two,)
    assert names(tmp_path) == [f"1-2-{two.digest}.safetensors"]


@pytest.mark.parametrize("name", ["../evil", "A" * 64, "0" * 63, "0" * 64 + "/../../x"])
def test_a_digest_that_is_none_names_no_file(tmp_path: Path, name: str) -> None:
    store = WeightStore(tmp_path / "store")
    staged = store.scratch()
    staged.write_bytes(b"one")
    with pytest.raises(ValueError, match="names no weights"):
        store.put(staged, Copy(name, 1, 1))
    with pytest.raises(ValueError, match="no name for a part"):
        store.part("ash", name, 10)
    with pytest.raises(ValueError, match="no name for a part"):
        store.part("../ash", "0" * 64, 10)
    assert names(tmp_path) == ["store/incoming/0.new"]


def test_a_part_goes_on_where_it_was_left(tmp_path: Path) -> None:
    digest = "a" * 64
    part = WeightStore(tmp_path).part("ash", digest, 10)
    part.append(memoryview(b"12345"))
    part.close(drop=False)
    again = WeightStore(tmp_path).part("ash", digest, 10)
    assert again.offset == 5
    assert again.read(0, 100) == b"12345"
    again.close(drop=True)
    assert names(tmp_path) == []


def test_a_part_larger_than_what_is_announced_starts_over(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    part = store.part("ash", "a" * 64, 10)
    part.append(memoryview(b"12345"))
    part.close(drop=False)
    assert store.part("ash", "a" * 64, 3).offset == 0


def test_a_part_never_grows_beyond_its_size(tmp_path: Path) -> None:
    part = WeightStore(tmp_path).part("ash", "a" * 64, 3)
    with pytest.raises(ValueError, match="do not belong"):
        part.append(memoryview(b"1234"))
    assert part.offset == 0


def test_the_same_part_is_received_once_at_a_time(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    part = store.part("ash", "a" * 64, 3)
    with pytest.raises(ValueError, match="already"):
        store.part("ash", "a" * 64, 3)
    store.part("birch", "a" * 64, 3).close(drop=True)
    part.close(drop=True)
    store.part("ash", "a" * 64, 3).close(drop=True)


def test_few_abandoned_parts_are_kept_and_the_oldest_go(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    for number in range(9):
        part = store.part("ash", f"{number}" * 64, 10)
        part.append(memoryview(b"x"))
        part.close(drop=False)
        os.utime(part.path, (number, number))
    kept = [name[9:10] for name in names(tmp_path)]
    assert kept == ["4", "5", "6", "7", "8"]
    WeightStore(tmp_path)
    assert [name[9:10] for name in names(tmp_path)] == ["5", "6", "7", "8"]


def test_abandoned_parts_take_no_more_than_a_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ABANDONED_BYTES", 15)
    store = WeightStore(tmp_path)
    for number in range(3):
        part = store.part("ash", f"{number}" * 64, 10)
        part.append(memoryview(b"0123456789"))
        part.close(drop=False)
        os.utime(part.path, (number, number))
    WeightStore(tmp_path)
    assert [name[9:10] for name in names(tmp_path)] == ["2"]


def test_strays_in_the_staging_area_are_removed_when_opened(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    store.scratch().write_bytes(b"half")
    (store.incoming / "what").write_bytes(b"")
    (store.incoming / "link.part").symlink_to("/etc/hostname")
    (store.incoming / ("a" * 64 + "-ash.part")).write_bytes(b"123")
    WeightStore(tmp_path)
    assert names(tmp_path) == [f"incoming/{'a' * 64}-ash.part"]


def test_weights_that_are_here_stand_in_for_a_part_and_are_never_written_to(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    copy = put(store, b"one")
    part = store.part("ash", copy.digest, 3)
    assert (part.offset, part.linked) == (3, True)
    with pytest.raises(ValueError, match="do not belong"):
        part.append(memoryview(b"x"))
    part.close(drop=True)
    assert store.copies() == (copy,)
    assert WeightStore(tmp_path).copies() == (copy,)
    assert not store.part("ash", copy.digest, 4).linked


def test_a_transfer_that_does_not_fit_is_refused_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = WeightStore(tmp_path)
    with pytest.raises(StoreFull, match="are free"):
        store.part("ash", "a" * 64, 1 << 60)
    assert names(tmp_path) == []
    # What has been promised to another transfer is not free.
    room = os.statvfs(tmp_path)
    free = room.f_bavail * room.f_frsize
    monkeypatch.setattr(os, "statvfs", lambda path: room)
    store.part("ash", "a" * 64, free // 2)
    with pytest.raises(StoreFull):
        store.part("ash", "b" * 64, free // 2)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_is_reported_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def full(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    store = WeightStore(tmp_path)
    part = store.part("ash", "a" * 64, 3)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StoreFull, match="the disk is full"):
            part.append(memoryview(b"abc"))
    part.close(drop=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", full)
        with pytest.raises(StoreFull, match="the disk is full"):
            put(store, b"one")
    assert store.copies() == ()
    WeightStore(tmp_path)
    assert names(tmp_path) == []


def test_what_the_disk_could_not_take_meanwhile_is_reported_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fdatasync
    errors = [OSError(errno.EIO, os.strerror(errno.EIO))]

    def once(file: int) -> None:
        if errors:
            raise errors.pop()  # the system reports a failed write once, and not again
        sync(file)

    part = WeightStore(tmp_path).part("ash", "a" * 64, 3)
    part.append(memoryview(b"abc"))
    monkeypatch.setattr(os, "fdatasync", once)
    part.settle_meanwhile()
    with pytest.raises(OSError, match="Input/output error"):
        part.settle()
    part.close(drop=True)
