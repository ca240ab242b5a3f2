"""What sites must agree on before they work together: settings, labels, and the numbers that mean sites."""

from __future__ import annotations

import hashlib
import re

from tramfl.circulation.custody import Record
from tramfl.config import as_toml
from tramfl.notation import BadInput
from tramfl.runtime.registers.contract import other_protocol
from tramfl.runtime.settings import Federation
from tramfl.runtime.wire import PROTOCOL

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""A run's name is also the name of a folder at every site."""


def digest_of_settings(federation: Federation) -> str:
    """SHA-256 of what must be the same at every site: the run's settings, and which number means which site."""
    content = "\n".join((*federation.names, as_toml(federation.file.run)))
    return hashlib.sha256(content.encode()).hexdigest()


def misfit(record: Record, federation: Federation, labels: int) -> str | None:
    """Why a site whose data has `labels` labels cannot join a run, in one sentence; None where it can."""
    if record.protocol != PROTOCOL:
        return other_protocol(f"run {record.run}", record.protocol)
    last = max((record.holder or 0, *record.weights.copies, *record.safe.copies))
    if last >= len(federation.names):
        return (
            f"run {record.run} has a site number {last}, and {federation.path} lists only {len(federation.names)};"
            " give this site the federation's newest file."
        )
    if len(record.ledger.used) != labels:
        return (
            f"run {record.run} has {len(record.ledger.used)} labels, and this site's data has {labels};"
            " every site needs the same labels, so change the data, or stop the run."
        )
    return None


def check_run_name(run: str) -> None:
    """BadInput unless `run` can name a run."""
    if not RUN_NAME.fullmatch(run):
        raise BadInput(f"{run!r} is no name for a run; use letters, digits, dots, hyphens and underscores.")
