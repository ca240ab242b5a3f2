"""Networks, their weights as files, and what they cost to train and send.

networks     the networks by name, and the user's own; cost: M and D_M of a network
weights      weights as safetensors files; travelling: which of them training changes, so which are sent
"""
