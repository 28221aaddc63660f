"""Experiments: data, models and protocols that put the objectives to work."""
