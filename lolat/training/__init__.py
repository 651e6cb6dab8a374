"""The time, memory and cost of training."""
