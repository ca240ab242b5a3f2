"""The operator's end: found a federation, check it, ask its sites and collect its model."""
