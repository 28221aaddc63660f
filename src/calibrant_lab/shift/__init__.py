"""Accuracy and calibration on corrupted test images."""
