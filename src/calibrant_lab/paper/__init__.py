"""The paper's tables and figures, from a store of trials."""
