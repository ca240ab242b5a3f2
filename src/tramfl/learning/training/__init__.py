"""Training and testing, in simulation and at one real site.

learner      all nodes of a simulated run; site: one real site; both use trainer, Step 4 of a round at one node
building     makes the learner of a scenario; nodes: what each of its nodes trains and tests on
task         how a network is called and what its loss is; descent: the optimiser; pools, samples: the next samples
evaluation   tests a model against its targets; metrics: accuracy and others by name
"""
