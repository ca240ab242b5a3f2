"""Runs in virtual time: what `tramfl run`, `compare`, `plan`, `faults` and `tramfl.simulate` do.

api, grid    one run, or many, from Python or a command; play: one run into its folder; experiment: its rounds
world        N round machines and a clock; register: its leases and answers; lives: its processes;
             faults: the search for schedules that break an invariant
loads        what nodes can spare; processes, traces, own_loads: other kinds; foresight: what a policy sees of them

Only modules that train import torch, and only when a run begins, so this package can be imported without it.
"""
