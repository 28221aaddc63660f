"""Tables of the paper, from stored results."""
