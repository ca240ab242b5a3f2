"""tramfl: one model travels between the sites that own the data."""

__version__ = "0.1.0"
