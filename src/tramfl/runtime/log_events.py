"""Every event that a site logs, with its fields: the only events that the journal accepts.

A field has one name and one meaning in all events. The metrics count these events, and the reference of the log is
written from this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType

from msgspec import Struct


class Field(Struct, frozen=True):
    """One field of a log line."""

    kind: type | UnionType
    about: str


class LogEvent(Struct, frozen=True):
    """One kind of log line."""

    about: str
    """When a site logs it."""
    fields: tuple[str, ...] = ()
    """Beside those that every line has; `FIELDS` explains them."""
    sometimes: tuple[str, ...] = ()
    """Those of the fields that may be missing."""


EVERYWHERE: Mapping[str, Field] = {
    "at": Field(str, "UTC, to the millisecond."),
    "site": Field(str, "The site that writes the line."),
    "event": Field(str, "Which event it is."),
    "run": Field(str | None, "The run that the register has, as this site last read it."),
    "epoch": Field(int | None, "Its epoch then; of `committed`, the epoch of the round."),
    "round": Field(int | None, "Its rounds done then; of `committed`, `scored` and `not-scored`, the round itself."),
}
"""Fields of every line."""

FIELDS: Mapping[str, Field] = {
    "actual_seconds": Field(float, "What the round took: training, transfer and waiting."),
    "address": Field(str, "Where this site listens (`started`), or where the call came from."),
    "copies": Field(list, "SHA-256 of the weights on this site's disk."),
    "digest": Field(str, "SHA-256 of the weights in question."),
    "doing": Field(str, "What took longer than its deadline: sending or training."),
    "file": Field(str, "The file in question."),
    "held": Field(tuple, "Training samples of each label at this site."),
    "holder": Field(str | None, "The site that holds the model; null where none does."),
    "incarnation": Field(int, "How often this site has been started."),
    "named": Field(str, "The run that the order names; empty where it names none."),
    "node": Field(str | None, "The site that trained; null where the round was skipped."),
    "overhead_seconds": Field(float, "What gathering, deciding, the register and the disk took in the round."),
    "peer": Field(str, "The other site, or `operator`; `?` where the caller did not prove who it is."),
    "place": Field(str, "The machine and the folder of the other process of this site."),
    "predicted_seconds": Field(float, "What the decision predicted for the round."),
    "reason": Field(str, "Why, in words."),
    "safe": Field(int, "The newest round that two sites have on disk."),
    "samples": Field(int, "Samples trained in the round."),
    "test_accuracy": Field(float | None, "Share of right answers on the test set."),
    "test_loss": Field(float | None, "Loss on the test set."),
    "trace": Field(str, "Python's traceback."),
    "what": Field(str, "The method that was called, `connection`, or the order that was given."),
}
"""Fields that some events have."""

EVENTS: Mapping[str, LogEvent] = {
    "audit-not-kept": LogEvent("The site's audit trail could not be written.", ("file", "reason")),
    "black-box": LogEvent(
        "Something broke; the site's last events are in this file, unless it could not be written: see"
        " `tramfl blackbox`.",
        ("file", "reason"),
        sometimes=("reason",),
    ),
    "broken": LogEvent("Something failed that no rule covers; the site ends.", ("reason", "trace")),
    "committed": LogEvent(
        "A round of this site's is in the record.",
        ("node", "samples", "predicted_seconds", "actual_seconds", "overhead_seconds", "reason"),
    ),
    "damaged": LogEvent("A file is not what it should be; it is set aside.", ("file", "reason")),
    "ended": LogEvent("The site has ended in good order."),
    "ending": LogEvent("The site was asked to end; it hands the model on first."),
    "failed": LogEvent("This site failed to answer a call.", ("peer", "address", "what", "reason")),
    "finished": LogEvent("The run is at its last target or its first limit; this site stops it.", ("reason",)),
    "given-up": LogEvent(
        "A transfer became so slow that the round goes on elsewhere; what has arrived is kept there.",
        ("peer", "reason"),
    ),
    "grpc": LogEvent(
        "A warning or an error of gRPC, in its own words: a port that is taken, for example.", ("reason",)
    ),
    "handed-on": LogEvent("A site that ends has made another site the holder.", ("peer",)),
    "history-not-kept": LogEvent("What was learnt about loads could not be written.", ("file", "reason")),
    "history-unreadable": LogEvent("What was learnt about loads could not be read.", ("file", "reason")),
    "holder-lost": LogEvent("The holder has no lease any more.", ("holder",)),
    "reference-fetched": LogEvent(
        "The site fetched first weights that a coded model is a difference to.", ("digest", "peer")
    ),
    "joined": LogEvent("The site takes part in a run.", ("holder", "copies")),
    "lease-lost": LogEvent("This site's lease ran out; it takes a new one."),
    "load-ignored": LogEvent("A site reported a load that makes no sense; it is left out.", ("peer", "reason")),
    "must-end": LogEvent(
        "The site ends, since a person must change something first: it was removed, its certificate was revoked, or"
        " another process of it has joined.",
        ("reason",),
    ),
    "not-accepted": LogEvent(
        "Weights that were trained here, or arrived, are not acceptable: the round goes on without this site.",
        ("digest", "reason"),
    ),
    "not-decided": LogEvent("The policy failed; the round is skipped.", ("reason",)),
    "not-joined": LogEvent("The run in the register does not fit this site, which waits for another.", ("reason",)),
    "not-read": LogEvent("The machine's load could not be read; it is read again later.", ("reason",)),
    "not-scored": LogEvent("Weights could not be tested.", ("reason",)),
    "not-sent": LogEvent("A model did not reach another site.", ("peer", "reason")),
    "not-stored": LogEvent("Weights could not be written to disk.", ("digest", "reason")),
    "order": LogEvent("An operator, or another site, asked for something.", ("peer", "what", "named")),
    "overdue": LogEvent("A transfer or a training took longer than its deadline.", ("doing",)),
    "peer-back": LogEvent("A site that was missing reported its load again.", ("peer",)),
    "peer-missing": LogEvent("A site did not report its load; logged once until it is back.", ("peer", "reason")),
    "record-ignored": LogEvent(
        "The register holds a record that cannot be right; the last good one stands.", ("reason",)
    ),
    "record-not-kept": LogEvent("The last good record could not be written to this site's disk.", ("file", "reason")),
    "refused": LogEvent(
        "A caller, a call or a model was rejected.", ("peer", "what", "reason", "address"), sometimes=("address",)
    ),
    "register-silent": LogEvent("The register does not answer; it is asked again.", ("reason",)),
    "revocations-ignored": LogEvent(
        "A list of revoked certificates is not the authority's, or could not be kept.", ("reason",)
    ),
    "revoked": LogEvent("The certificates of a site, or of the operator, are refused from now on.", ("peer",)),
    "row-ignored": LogEvent("A row or a note in the register is not signed by a member.", ("reason",)),
    "scored": LogEvent("The weights of a round were tested.", ("test_accuracy", "test_loss")),
    "started": LogEvent("The site answers calls.", ("address", "incarnation", "held")),
    "taken-over": LogEvent("The run goes on under a new epoch.", ("holder", "safe")),
    "training-failed": LogEvent("A training failed; the round is decided anew without this site.", ("reason",)),
    "two-places": LogEvent(
        "Another process of this site, at another place, had a lease when this one joined: it ends.", ("place",)
    ),
    "workshop-lost": LogEvent("The process that trains ended; it is started again.", ("reason",)),
}
"""Every event."""


def wrong_with(event: str, fields: Mapping[str, object]) -> str | None:
    """What keeps a line from being one of the listed events; None if it is one."""
    if event not in EVENTS:
        return f"there is no log event {event!r}"
    known = EVENTS[event]
    if unknown := fields.keys() - {*known.fields, *EVERYWHERE}:
        return f"log event {event!r} has no field {', '.join(sorted(unknown))}"
    if missing := {*known.fields} - {*known.sometimes} - fields.keys():
        return f"log event {event!r} lacks {', '.join(sorted(missing))}"
    for name, value in fields.items():
        kind = (FIELDS.get(name) or EVERYWHERE[name]).kind
        if not isinstance(value, kind) and not (isinstance(value, int) and isinstance(0.0, kind)):
            return f"log event {event!r}: {name} is {value!r}, which is no {kind}"
    return None
