"""The other side of the workshop: the process that loads the site's model and data, trains and tests."""

from __future__ import annotations

import os
import queue
import sys
import threading
from pathlib import Path
from typing import BinaryIO

import msgspec

from tramfl.learning.app import app_named
from tramfl.learning.training.site import SiteLearner, build_site_learner
from tramfl.notation import BadInput
from tramfl.record import Scores
from tramfl.references import look_only_in
from tramfl.runtime.training.workshop import (
    LENGTH,
    Build,
    Built,
    Failed,
    FindLoss,
    FoundLoss,
    Job,
    JobResult,
    MakeInitial,
    NewWeights,
    Score,
    Scored,
)


class _Bench:
    """Does what it is asked, one thing at a time."""

    def __init__(self) -> None:
        self._learner: SiteLearner | None = None

    def do(self, request: Job) -> JobResult:
        """Carry out a request; an exception of the site's own code becomes a result."""
        try:
            return self._do(request)
        except BadInput as error:
            return Failed(str(error), expected=True)
        except Exception as error:  # the model and the data are the site's own code
            return Failed(f"{type(error).__name__}: {error}", expected=False)

    def _do(self, request: Job) -> JobResult:
        if isinstance(request, Build):
            return self._load(request)
        learner = self._learner
        assert learner is not None
        if isinstance(request, Score):
            found = learner.scores(Path(request.weights), request.targets, _path(request.readout))
            metrics = found.metrics or msgspec.UNSET
            return Scored(Scores(found.test_accuracy, found.test_loss, found.validation_loss, metrics))
        if isinstance(request, FindLoss):
            return FoundLoss(*learner.check(Path(request.weights)))
        if isinstance(request, MakeInitial):
            made = learner.write_initial(Path(request.to))
        else:
            paths = Path(request.to), _path(request.readout)
            made = learner.train(Path(request.parent), request.samples, request.round, *paths)
        return NewWeights(
            made.digest, made.size, made.seconds, made.diverged, made.losses, made.reference, made.change
        )

    def _load(self, request: Build) -> Built:
        learner = build_site_learner(
            request.scenario,
            node=request.node,
            name=request.name,
            app=app_named(request.app) if request.app else None,
            share=request.share,
            data_dir=Path(request.data_dir) if request.data_dir else None,
            threads=request.threads,
            references=_path(request.references),
        )
        self._learner = learner
        return Built(learner.labels, learner.held, learner.cost, learner.calibrate(), learner.base)


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def main() -> None:
    """The process that trains: requests on standard input, results on what was standard output.

    Its argument, if it has one, is the folder with the site's own modules.
    """
    look_only_in(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    answers = os.fdopen(os.dup(1), "wb")
    # The site's own code may print: that goes to the log, not among the results.
    os.dup2(2, 1)
    requests: queue.SimpleQueue[Job] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, requests), daemon=True).start()
    bench = _Bench()
    encode = msgspec.msgpack.Encoder().encode
    while True:
        message = encode(bench.do(requests.get()))
        answers.write(LENGTH.pack(len(message)) + message)
        answers.flush()


def _listen(source: BinaryIO, requests: queue.SimpleQueue[Job]) -> None:
    """Read requests; when the site is gone, end this process, even in the middle of a training."""
    decode = msgspec.msgpack.Decoder(Job).decode
    while True:
        head = source.read(LENGTH.size)
        if len(head) < LENGTH.size:
            os._exit(0)
        requests.put(decode(source.read(LENGTH.unpack(head)[0])))
