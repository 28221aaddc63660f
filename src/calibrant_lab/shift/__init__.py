"""Test images made worse, and what becomes of accuracy and calibration."""
