"""One training step: what is computed, sent and helped with; devices and how slow they are."""
