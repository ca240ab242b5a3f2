"""Learning: data, partitions, networks, and Step 4 of a round. The only package that imports torch.

data/        data sets, the user's own data, and how samples are divided between nodes; works without torch
model/       networks, their weights as files, what of them travels and what that costs
training/    the task, the trainer of one node, the learners of a simulation and of a site, and testing

`app.py` has `tramfl.App`: what a user brings. Modules that import torch are imported only when training begins, so a
scenario can be listed, checked and scheduled before.
"""
