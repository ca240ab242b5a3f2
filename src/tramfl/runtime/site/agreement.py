"""What sites must agree on before they work together: members, settings, timings and labels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from tramfl.circulation.custody import Record
from tramfl.circulation.soundness import RUN_NAME
from tramfl.notation import BadInput
from tramfl.runtime.registers.records import other_protocol
from tramfl.runtime.settings import Federation
from tramfl.runtime.wire import PROTOCOL

_OWN = ("site", "register")
"""Keys of federation.toml that may differ: members are in the record, and each site has its way to the register."""


def agreement_of(federation: Federation) -> bytes:
    """What must be the same at every site of a run: the [run] table and the timings of federation.toml, as JSON."""
    settings = {key: value for key, value in msgspec.to_builtins(federation.file).items() if key not in _OWN}
    return msgspec.json.encode(settings, order="deterministic")


def digest_of(agreement: bytes) -> str:
    """SHA-256 of an agreement."""
    return hashlib.sha256(agreement).hexdigest()


def first_difference(here: bytes, there: bytes, where: str = "in the run") -> str | None:
    """The first setting in which two agreements differ, as `KEY is X here and Y in the run`; None where all agree."""
    mine, theirs = (dict(_settings(msgspec.json.decode(content))) for content in (here, there))
    for key in (*mine, *(key for key in theirs if key not in mine)):
        one, other = mine.get(key), theirs.get(key)
        if one != other:
            return f"{key.removeprefix('run.')} is {_shown(one)} here and {_shown(other)} {where}"
    return None


def _settings(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting by its dotted key."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _settings(inner, f"{key}.{name}" if key else name)
    else:
        yield key, value


def _shown(value: Any) -> str:
    return "not set" if value is None else msgspec.json.encode(value).decode()


def disagreement(federation: Federation, run: str, agreed: Iterable[bytes]) -> str | None:
    """Why a site does not join a run whose sites have `agreed` on something else, in one sentence; None if it may."""
    for content in agreed:
        if differs := first_difference(agreement_of(federation), content):
            return f"{federation.path}: {differs} {run}; all sites must agree."
    return None


def no_member(name: str) -> str:
    """Why a site that is no member ends, in one sentence."""
    remedy = f"an operator adds it with tramfl members add {name} HOST:PORT"
    return f"site {name!r} is no member of the federation; {remedy}."


def removed(name: str) -> str:
    """Why a site that was a member ends, in one sentence."""
    return (
        f"site {name!r} is no member of the federation any more, since an operator removed it with tramfl members"
        f" remove {name}: it ends. To let it in again, use tramfl members add {name} HOST:PORT, then start the site."
    )


def misfit(record: Record, federation: Federation, name: str, labels: int) -> str | None:
    """Why the site `name`, whose data has `labels` labels, cannot join a run, in one sentence; None where it can."""
    if record.protocol != PROTOCOL:
        return other_protocol(f"run {record.run}", record.protocol)
    if (wrong := misfit_of_members(record, federation, name)) is not None:
        return wrong
    if len(record.ledger.used) != labels:
        return (
            f"run {record.run} has {len(record.ledger.used)} labels, and this site's data has {labels};"
            " every site needs the same labels, so change the data, or stop the run."
        )
    return None


def misfit_of_members(record: Record, federation: Federation, name: str) -> str | None:
    """Why the site's list of sites and the members do not go together, in one sentence; None where they do."""
    for listed in federation.names:
        if record.number_of(listed) is None and listed != name:
            return (
                f"{federation.path} lists site {listed!r}, which run {record.run} does not have; add it with tramfl"
                f" members add {listed} HOST:PORT, or take it out of the file."
            )
    number = record.number_of(name)
    if number is None or not record.is_member(number):
        return no_member(name)
    return None


def check_run_name(run: str) -> None:
    """BadInput unless `run` can name a run."""
    if not RUN_NAME.fullmatch(run):
        raise BadInput(f"{run!r} is no name for a run; use letters, digits, dots, hyphens and underscores.")
