"""Scenario files: TOML in, frozen settings out, and errors that name the key.

`scenario.py` has the settings, `tables.py` reads and writes them, `wording.py` says what is wrong with a table.
"""

from tramfl.config.scenario import (
    ACCURACY,
    LOSS,
    Acceptance,
    Budget,
    Codec,
    Cost,
    Evaluation,
    ExchangeSettings,
    LoadModel,
    Noise,
    NotNegative,
    Partition,
    Positive,
    ReadOut,
    Scenario,
    TrainingSettings,
    Transit,
    Whole,
)
from tramfl.config.tables import as_table, as_toml, by_key, override, read_toml, settings_from, with_value

__all__ = [
    "ACCURACY",
    "LOSS",
    "Acceptance",
    "Budget",
    "Codec",
    "Cost",
    "Evaluation",
    "ExchangeSettings",
    "LoadModel",
    "Noise",
    "NotNegative",
    "Partition",
    "Positive",
    "ReadOut",
    "Scenario",
    "TrainingSettings",
    "Transit",
    "Whole",
    "as_table",
    "as_toml",
    "by_key",
    "override",
    "read_toml",
    "settings_from",
    "with_value",
]
