"""Networks, their weights as files, and what they cost to train and send.

networks     the networks by name, and the user's own; cost: M and D_M of a network
weights      weights as safetensors files; travelling: which of them training changes, so which are sent
codec        what a tensor is on its way: float32, or a difference in 16, 8 or 4 bits; coded_files: whole coded files
"""
