"""What a record must look like: all sites can write to the register, and one of them may be hostile.

A record that is not sound would break the machine of every site that acts on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from tramfl.circulation.custody import Entry, Record, Versioned
from tramfl.notation import Digest, Ledger, NodeId

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""A run's name is also the name of a folder at every site and at the operator."""
DIGEST = re.compile(r"[0-9a-f]{64}")
SITE_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""A site's name is also a name in its certificate."""
MOST_MEMBERS = 100_000
MOST_ADDRESS = 300
MOST_VERSIONS = 100
"""Kept to go back to."""
MOST_COUNT = 1 << 53
"""No epoch, round or count of samples is as large as this."""
MOST_SECONDS = 1e12
"""No moment or duration is as large as this: 30,000 years."""


def fault(record: Record) -> str | None:
    """What is wrong with a record, in words; None where it is sound."""
    return next(_faults(record), None)


def fault_in_step(before: Record, after: Record) -> str | None:
    """Why `after` cannot have come from `before`, by any changes that sites may make; None where it can."""
    return next(_faults_in_step(before, after), None) if after.run == before.run else None


def fault_in_writing(before: Versioned, after: Versioned) -> str | None:
    """Why the node that signed `after` may not have changed `before` in this way; None where it may, or none signed.

    Who may change what is known only where nothing came between the two.
    """
    if not after.by or after.record.run != before.record.run:
        return None
    if after.after < before.revision:
        return f"it was made for revision {after.after}, and revision {before.revision} has been seen since"
    return next(_faults_of_writer(before, after), None) if after.after == before.revision else None


def _faults_of_writer(before: Versioned, after: Versioned) -> Iterator[str]:
    old, new, writer = before.record, after.record, before.record.number_of(after.by)
    if writer is None:
        yield f"{after.by} never was a member"
    if new.epoch == old.epoch and _trained(old) != _trained(new) and writer != old.holder:
        yield f"{after.by} changed what only the holder, {old.name_of(old.holder)}, may change"
    known = {(old.weights.digest, old.ledger), *((v.digest, v.ledger) for v in (old.safe, *old.kept))}
    if new.epoch > old.epoch and (new.weights.digest, new.ledger) not in known:
        # So the site that takes over must commit, as the holder, what it trained: the trail has its name.
        yield f"{after.by} began epoch {new.epoch} with weights or a ledger that the run did not have"


def _trained(record: Record) -> tuple[object, ...]:
    """What only the holder changes within an epoch."""
    return record.holder, record.weights.digest, record.weights.since, record.ledger


def _faults(record: Record) -> Iterator[str]:
    if not RUN_NAME.fullmatch(record.run):
        yield f"{record.run[:100]!r} is no name for a run"
    if not 1 <= record.epoch < MOST_COUNT:
        yield f"epoch {record.epoch} is out of range"
    for name, digest, copies, ledger, since in (
        ("newest", record.weights.digest, record.weights.copies, record.ledger, record.weights.since),
        ("safe", record.safe.digest, record.safe.copies, record.safe.ledger, record.safe.since),
        *(("kept", kept.digest, kept.copies, kept.ledger, kept.since) for kept in record.kept[:MOST_VERSIONS]),
    ):
        for wrong in (*_faults_in_weights(digest, copies, since), *_faults_in_ledger(ledger)):
            yield f"the {name} weights: {wrong}"
    if record.safe.round != record.safe.ledger.round or record.safe.round > record.round:
        yield f"round {record.safe.round} is said to be safe, {record.safe.ledger.round} and {record.round} are done"
    yield from _faults_in_versions(record)
    if any(len(v.ledger.used) != len(record.ledger.used) for v in (record.safe, *record.kept)):
        yield "its ledgers count different labels"
    safe = (node for version in (record.safe, *record.kept) for node in version.copies)
    named = (record.holder if record.holder is not None else 0, *record.weights.copies, *safe)
    if not all(0 <= node < len(record.members) for node in named):
        yield f"it names a site number {max(named, key=abs)}, and has {len(record.members)} members"
    yield from _faults_in_members(record.members)


def _faults_in_versions(record: Record) -> Iterator[str]:
    if not (0 <= record.keep_versions <= MOST_VERSIONS and 1 <= record.keep_every < MOST_COUNT):
        yield f"it is to keep {record.keep_versions} versions, {record.keep_every} rounds apart"
    if len(record.kept) > record.keep_versions:
        yield f"it keeps {len(record.kept)} versions, and {record.keep_versions} at most"
    rounds = [*(version.round for version in record.kept), record.safe.round]
    if any(one >= other for one, other in pairwise(rounds)) or any(v.round != v.ledger.round for v in record.kept):
        yield f"it keeps versions of rounds {rounds[:-1]}, and round {record.safe.round} is safe"


def _faults_in_members(members: tuple[Entry, ...]) -> Iterator[str]:
    if len(members) > MOST_MEMBERS or len({entry.name for entry in members}) != len(members):
        yield f"it has {len(members)} members, more than {MOST_MEMBERS}, or two of one name"
    for entry in members:
        if not SITE_NAME.fullmatch(entry.name) or len(entry.address or "") > MOST_ADDRESS:
            yield f"{entry.name[:64]!r} at {(entry.address or '')[:64]!r} is no member"


def _faults_in_step(before: Record, after: Record) -> Iterator[str]:
    if after.epoch < before.epoch:
        yield f"the epoch fell from {before.epoch} to {after.epoch}"
    if after.epoch == before.epoch and after.round < before.round:
        yield f"within epoch {after.epoch} the round fell from {before.round} to {after.round}"
    # A rollback, and what was done since.
    rolled_back = after.epoch > before.epoch and any(kept.round <= after.safe.round for kept in before.kept)
    if after.safe.round < before.safe.round and not rolled_back:
        yield f"the safe round fell from {before.safe.round} to {after.safe.round}"
    if len(after.ledger.used) != len(before.ledger.used):
        yield f"the labels became {len(after.ledger.used)} of {len(before.ledger.used)}"
    if [entry.name for entry in after.members[: len(before.members)]] != [entry.name for entry in before.members]:
        yield "a member lost its number"
    if before.status == "stopped" != after.status:
        yield f"the run was stopped, and is {after.status} again"


def _faults_in_weights(digest: Digest, copies: tuple[NodeId, ...], since: float) -> Iterator[str]:
    if not DIGEST.fullmatch(digest):
        yield f"{digest[:64]!r} is no SHA-256"
    if len(set(copies)) != len(copies):
        yield "a site is named twice"
    if not abs(since) < MOST_SECONDS:  # a NaN is not
        yield f"{since} is no moment"


def _faults_in_ledger(ledger: Ledger) -> Iterator[str]:
    counts = (*ledger.used, ledger.round, ledger.skipped)
    if not all(0 <= count < MOST_COUNT for count in counts) or ledger.skipped > ledger.round:
        yield "its ledger has a count that is out of range"
    if not ledger.used:
        yield "its ledger has no labels"
    if not 0 <= ledger.seconds < MOST_SECONDS:
        yield f"its ledger has {ledger.seconds} seconds"
