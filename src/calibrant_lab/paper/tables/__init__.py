"""Tables of the paper, from what a store holds."""
