"""A device: its file, its predictors, and the latency of a network on it."""
