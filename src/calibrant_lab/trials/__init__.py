"""Trials: training runs whose results are stored, so that none is run twice."""
