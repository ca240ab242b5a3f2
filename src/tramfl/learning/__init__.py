"""Learning: data, partitions, networks, and Step 4 of a round. The only package that imports torch.

`datasets`, `download`, `partition`, `partitioners` and `references` work without torch, so a scenario can
be listed, checked and scheduled before anything heavy is loaded; the rest is imported by whoever trains.
"""
