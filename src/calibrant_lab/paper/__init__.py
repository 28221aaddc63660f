"""The paper's tables and figures, from what a store of trials holds."""
