"""How good outputs are, by name: scikit-learn's metrics on all tested samples, or the user's own functions.

Every metric takes the network's outputs and the targets of the tested samples, as tensors on the CPU.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tramfl.config import ACCURACY
from tramfl.notation import BadInput
from tramfl.references import as_bad_input

Metric = Callable[[Any, Any], float]
Direction = Literal["higher", "lower"]
"""Whether more is better."""


def _accuracy(outputs: Tensor, targets: Tensor) -> float:
    from sklearn.metrics import accuracy_score  # noqa: PLC0415 - heavy

    return float(accuracy_score(_classes(outputs, targets), _flat(targets)))


def _f1(outputs: Tensor, targets: Tensor) -> float:
    """Macro F1: the mean over the classes."""
    from sklearn.metrics import f1_score  # noqa: PLC0415 - heavy

    return float(f1_score(_flat(targets), _classes(outputs, targets), average="macro", zero_division=0))


def _auroc(outputs: Tensor, targets: Tensor) -> float:
    """Area under the ROC curve: of one score, or the mean over one-against-the-rest of each class."""
    from sklearn.metrics import roc_auc_score  # noqa: PLC0415 - heavy

    scores, wanted = _numbers(outputs), targets.numpy()
    if scores.ndim == 2 and scores.shape[1] == 1:
        scores = scores[:, 0]
    if scores.ndim == 1 or wanted.ndim == 2:
        return float(roc_auc_score(wanted.reshape(scores.shape), scores))
    if scores.shape[1] == 2:
        return float(roc_auc_score(wanted, scores[:, 1] - scores[:, 0]))
    shares = torch.softmax(outputs.double(), 1).numpy()
    return float(roc_auc_score(wanted, shares, multi_class="ovr", labels=np.arange(scores.shape[1])))


def _mae(outputs: Tensor, targets: Tensor) -> float:
    from sklearn.metrics import mean_absolute_error  # noqa: PLC0415 - heavy

    return float(mean_absolute_error(*_paired(outputs, targets)))


def _rmse(outputs: Tensor, targets: Tensor) -> float:
    from sklearn.metrics import root_mean_squared_error  # noqa: PLC0415 - heavy

    return float(root_mean_squared_error(*_paired(outputs, targets)))


def _r2(outputs: Tensor, targets: Tensor) -> float:
    from sklearn.metrics import r2_score  # noqa: PLC0415 - heavy

    return float(r2_score(*_paired(outputs, targets)))


METRICS: dict[str, Metric] = {
    ACCURACY: _accuracy,
    "f1": _f1,
    "auroc": _auroc,
    "mae": _mae,
    "rmse": _rmse,
    "r2": _r2,
}
"""Known by name."""


def metrics_of(named: Iterable[str], own: Any) -> dict[str, Metric]:
    """The metrics that scenario and app ask for, by name; the app's functions come before known ones of that name."""
    brought = _brought(own)
    found: dict[str, Metric] = {}
    for name, metric in brought.items():
        found[name] = metric if callable(metric) else _known(str(metric))
    for name in named:
        found.setdefault(name, _known(name) if name not in brought else found[name])
    return found


def _brought(own: Any) -> Mapping[str, Any]:
    if own is None:
        return {}
    if isinstance(own, str):
        return {own: own}
    if isinstance(own, Mapping):
        return {str(name): metric for name, metric in own.items()}
    if isinstance(own, Sequence):
        return {name if isinstance(name, str) else getattr(name, "__name__", str(name)): name for name in own}
    raise BadInput(f"app: metrics is a {type(own).__name__}; give names, or functions by their names.")


def _known(name: str) -> Metric:
    if name not in METRICS:
        raise BadInput(
            f"there is no metric {name!r}: use {', '.join(METRICS)}, or give an app with a function of that name in"
            " metrics."
        )
    # Loaded now: the first test of a run must not wait for it, since a site gives up on work that takes too long.
    import sklearn.metrics  # noqa: F401, PLC0415 - heavy, and only these metrics need it

    return METRICS[name]


def value_of(name: str, metric: Metric, outputs: Any, targets: Any) -> float | None:
    """A metric of these outputs; None where it is not defined for them: AUROC of one class, or outputs with a NaN."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scikit-learn warns where a metric is not defined, and gives NaN
            value = float(metric(outputs, targets))
    except ValueError as error:
        if "class" in str(error) and "present" in str(error):
            return None
        if isinstance(outputs, Tensor) and not bool(outputs.isfinite().all()):
            return None  # training has diverged, which the row says
        raise BadInput(f"the metric {name!r} cannot be computed ({str(error).splitlines()[0]}).") from error
    except Exception as error:  # whatever a function of the user's raises
        raise as_bad_input(error, f"the metric {name!r}") from error
    return value if math.isfinite(value) else None  # JSON has neither NaN nor infinity


def _classes(outputs: Tensor, targets: Tensor) -> NDArray[Any]:
    """The predicted class of each target: the largest of several scores, or the sign of one."""
    if targets.ndim == outputs.ndim:
        return _flat((outputs > 0).to(targets.dtype).reshape(targets.shape))
    if outputs.ndim == 2 and outputs.shape[1] == 1:
        return _flat((outputs[:, 0] > 0).to(targets.dtype))
    return _flat(outputs.argmax(1))


def _flat(tensor: Tensor) -> NDArray[Any]:
    if tensor.ndim == 2 and tensor.shape[1] > 1:
        return tensor.numpy()  # multi-label: one column a label
    return tensor.reshape(-1).numpy()


def _numbers(outputs: Tensor) -> NDArray[Any]:
    return outputs.float().numpy()


def _paired(outputs: Tensor, targets: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
    given = outputs.float()
    if given.numel() != targets.numel():
        raise ValueError(f"outputs of {tuple(given.shape)} for targets of {tuple(targets.shape)}")
    rows = len(targets)
    return targets.float().reshape(rows, -1).numpy(), given.reshape(rows, -1).numpy()
