"""The recipes of the companion, one per file: features, target, network and training."""
