"""Trainable calibration objectives: each a pure function and a thin module over it, one method per file."""
