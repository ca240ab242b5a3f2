"""The files of a run's folder, and how a file is written so that no reader sees a part of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tramfl.notation import BadInput

CONFIG_FILE = "config.toml"
ROUNDS_FILE = "rounds.jsonl"
SUMMARY_FILE = "summary.json"
MODEL_FILE = "model.safetensors"
STATE_FILE = "state.safetensors"
TENSORBOARD_FOLDER = "tensorboard"
"""Where a run that TensorBoard follows keeps its events."""


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """BadInput, which says that `place` is to blame, where something cannot be written."""
    try:
        yield
    except OSError as error:
        raise BadInput(f"{place} cannot be written: {error.strerror}; give another place with --out.") from None


def write_atomically(path: Path, *content: bytes | memoryview) -> None:
    """Replace a file as a whole, with one piece after the other: a reader sees the old content or the new."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.writelines(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
