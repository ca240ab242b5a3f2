"""Data sets, their downloads, and how they are divided between nodes.

datasets     the known data sets by name, as arrays; releases: their files; download: fetches a file and checks it
own          `tramfl.Data`, the user's own data; parts and folders: arrays, torch Datasets, folders of images
partition    which node holds which samples; partitioners: the ways to divide that flwr-datasets has
"""
