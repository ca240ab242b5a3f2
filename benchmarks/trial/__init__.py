"""The trial: real sites that are far apart, and what happens to a run there. `__main__.py` lists its parts."""
