"""A method in which every node keeps a model, by its name, or the user's own by reference: `module:Class`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from tramfl.config import ExchangeSettings
from tramfl.exchange.cmfd import CMFD
from tramfl.exchange.cyclic import Cyclic
from tramfl.exchange.fedavg import FedAvg
from tramfl.exchange.feddc import FedDC
from tramfl.exchange.gossip import Gossip
from tramfl.exchange.gossip_async import AsynchronousGossip
from tramfl.exchange.pdmm import PDMM
from tramfl.exchange.plans import AsynchronousRule, BarrierRule
from tramfl.notation import BadInput
from tramfl.references import is_reference, referred

_BUILT_IN: Mapping[str, Callable[[ExchangeSettings, int], BarrierRule | AsynchronousRule]] = {
    "fedavg": FedAvg,
    "cyclic": Cyclic,
    "gossip": Gossip,
    "gossip-async": AsynchronousGossip,
    "feddc": FedDC,
    "pdmm": PDMM,
    "cmfd": CMFD,
}


def rule_names() -> list[str]:
    """The built-in rules."""
    return list(_BUILT_IN)


def rule_named(settings: ExchangeSettings, nodes: int) -> BarrierRule | AsynchronousRule:
    """The rule that `exchange.rule` names; BadInput lists the names there are."""
    name = settings.rule or ""
    if name in _BUILT_IN:
        return _BUILT_IN[name](settings, nodes)
    if not is_reference(name):
        raise BadInput(
            f"exchange.rule = {name!r}: choose one of {', '.join(_BUILT_IN)}, or name a class as module:Class."
        )
    factory: Any = referred(name, "exchange.rule")
    rule = factory(settings, nodes) if callable(factory) else factory
    if not (
        hasattr(rule, "start") and hasattr(rule, "reading") and (hasattr(rule, "plan") or hasattr(rule, "cycle"))
    ):
        raise BadInput(
            f"exchange.rule = {name!r} is no rule: it needs start(), reading(view), and plan(view) or"
            " cycle(node, view)."
        )
    found: BarrierRule | AsynchronousRule = rule
    return found


def is_asynchronous(rule: BarrierRule | AsynchronousRule) -> TypeGuard[AsynchronousRule]:
    """Whether every node goes on by itself."""
    return hasattr(rule, "cycle")
