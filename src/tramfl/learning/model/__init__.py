"""Networks, their weights as files, and what they cost to train and send."""
