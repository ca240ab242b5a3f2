"""Weights on disk: the store, what a file must look like, and a file on its way in."""
