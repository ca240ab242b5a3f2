"""Data sets, their downloads, and how they are divided between nodes."""
