"""Data sheets of GPUs, their links and prices."""
