"""Speed and memory, always as ratios against a named peer in the same run."""
