"""What an operator does where a run moves on, or a transfer breaks, while it fetches the model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.runtime.sites import federation
from tramfl.circulation.custody import Record, Versioned, first_record
from tramfl.notation import BadInput, Digest, NodeId
from tramfl.runtime.operator.operating import Operator
from tramfl.runtime.registers.contract import Standing
from tramfl.runtime.transport import Refusal, Unreachable
from tramfl.runtime.wire import Answer, Order

OLD, NEW = "0" * 64, "1" * 64


class Sites:
    """Sites as an operator reaches them: all say the same record, and only the weights in `given` can be had."""

    def __init__(self, records: list[Record], given: Digest | None, broken: bytes | None = None) -> None:
        self.records, self.given, self.broken = records, given, broken
        self.fetched: list[tuple[NodeId, Digest]] = []

    async def order(self, node: NodeId, order: Order, seconds: float) -> Answer:
        record = self.records[0]
        standing = Standing(Versioned(record, 1 + len(self.fetched)), frozenset({0, 1}))
        return Answer(True, "here", record=msgspec.msgpack.encode(standing))

    async def fetch(self, node: NodeId, digest: Digest, to: Path, progress: Callable[[int], None]) -> None:
        self.fetched.append((node, digest))
        part = to.with_name(f"{to.name}.{digest[:12]}.part")
        part.write_bytes(self.broken or b"")
        if self.broken:
            raise Unreachable("the line is dead")
        if digest != self.given:
            self.records = self.records[1:] or self.records
            raise Refusal("they are not here")
        part.rename(to)


def fetch(sites: Sites, to: Path) -> Digest:
    async def work() -> Digest:
        hand = Operator(federation(("ash", "birch")), "operator", None)
        hand._peers = sites  # type: ignore[assignment]
        record = (await hand.fetch(to, lambda _: None)).record
        assert record is not None
        return record.safe.digest

    return asyncio.run(work())


def record_of(digest: Digest) -> Record:
    return first_record("trial", 0, digest, (0, 1), labels=2)


def test_weights_that_a_run_has_left_behind_are_not_asked_for_again(tmp_path: Path) -> None:
    sites = Sites([record_of(OLD), record_of(OLD), record_of(NEW)], given=NEW)
    stale = tmp_path / f"model.{OLD[:12]}.part"
    stale.write_bytes(b"of an earlier fetch")
    assert fetch(sites, tmp_path / "model") == NEW
    assert sites.fetched == [(0, OLD), (1, OLD), (0, NEW)]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_weights_that_nobody_can_give_are_asked_for_once_of_everybody(tmp_path: Path) -> None:
    sites = Sites([record_of(OLD)], given=None)
    with pytest.raises(BadInput, match=r"round 0 lie at ash, birch, and cannot be fetched \(birch: they are not"):
        fetch(sites, tmp_path / "model")
    assert sites.fetched == [(0, OLD), (1, OLD)]
    assert not list(tmp_path.iterdir())


def test_what_has_come_of_a_broken_transfer_is_kept_for_the_next(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"of an earlier pull")
    sites = Sites([record_of(OLD)], given=None, broken=b"half of it")
    with pytest.raises(BadInput, match="the line is dead"):
        fetch(sites, tmp_path / "model")
    assert (tmp_path / f"model.{OLD[:12]}.part").read_bytes() == b"half of it"
    assert (tmp_path / "model").read_bytes() == b"of an earlier pull"
