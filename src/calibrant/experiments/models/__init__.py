"""Networks the experiments train; each returns logits."""
