"""Training and testing, in simulation and at one real site."""
