"""The user's own objects by name: `package.module:attribute`."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tramfl.notation import BadInput

_places: list[Callable[[], Path]] = [Path.cwd]
"""Where modules are looked for behind the installed ones."""


def look_only_in(folder: Path | None) -> None:
    """From now on take the user's modules from installed packages and from `folder`, not from the current folder.

    A site calls this function: the folder that a service is started in may be writable by others.
    """
    _places[:] = [] if folder is None else [lambda: folder]


def is_reference(text: str) -> bool:
    """Whether `text` is written as `package.module:attribute`."""
    module, colon, attribute = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *attribute.split(".")))


def referred(text: str, key: str) -> Any:
    """The object that `package.module:attribute` names; `key` is the setting an error speaks of."""
    if not is_reference(text):
        raise BadInput(f"{key} = {text!r}: write the user's own object as package.module:attribute.")
    module_name, _, attribute = text.partition(":")
    # Behind the installed modules, so that no file there can take the place of one of them.
    for place in _places:
        if (folder := str(place())) not in sys.path:
            sys.path.append(folder)
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise BadInput(f"{key} = {text!r}: module {module_name} cannot be imported ({error}).") from error
    except Exception as error:  # whatever the user's module raises while it is imported
        raise BadInput(
            f"{key} = {text!r}: module {module_name} cannot be imported ({type(error).__name__}: {error})."
        ) from error
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise BadInput(f"{key} = {text!r}: module {module_name} has no {attribute!r}.") from None
    return found


def reference_to(thing: Any) -> str | None:
    """`package.module:attribute` of a class or function that can be imported under it; None of anything else."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is thing and is_reference(f"{module}:{name}") else None


def described(thing: Any) -> str:
    """A class or function by its place, any other object by that of its class."""
    named = thing if isinstance(getattr(thing, "__qualname__", None), str) else type(thing)
    return f"{named.__module__}:{named.__qualname__}"


@contextmanager
def users_code(what: str) -> Iterator[None]:
    """Around a call of the user's own code: whatever it raises becomes one sentence about `what`."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        raise as_bad_input(error, what) from error


def as_bad_input(error: Exception, what: str) -> BadInput:
    """An exception of the user's own code in one sentence, with the line of theirs that it comes from."""
    lines = str(error).strip().splitlines() or [""]
    # A worker that reads data sends its whole traceback as a message; what was raised is its last line.
    raised = lines[-1] if "Original Traceback" in str(error) else f"{type(error).__name__}: {lines[0]}"
    here = Path(__file__).parent
    places = [
        f" ({Path(frame.filename).name}, line {frame.lineno})"
        for frame in traceback.extract_tb(error.__traceback__)
        if here not in Path(frame.filename).parents and "site-packages" not in Path(frame.filename).parts
    ]
    return BadInput(f"{what} raised {raised.rstrip('.: ')}{places[-1] if places else ''}.")


def call_with_known(factory: Callable[..., Any], **offered: Any) -> Any:
    """Call `factory` with those of the `offered` arguments that it names."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return factory()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return factory(**offered)
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return factory(**{name: value for name, value in offered.items() if name in named})
