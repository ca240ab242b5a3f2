"""One site's process: it follows the register, answers its peers and drives the round machine."""
