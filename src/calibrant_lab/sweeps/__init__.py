"""Sweeps: recorded requests for tables of trials, and how they are run."""
