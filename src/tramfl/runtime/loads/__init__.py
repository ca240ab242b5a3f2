"""What this site can spare: measured, remembered and predicted."""
