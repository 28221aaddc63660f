"""Data sets of the experiments, and fast loaders.

Each is read from the folder of its official files, gzipped or not, or from the folder above. If the folder is None, it
is downloaded from the Hugging Face hub.
"""
