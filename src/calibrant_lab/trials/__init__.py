"""Trials: run once, kept, and never run again."""
