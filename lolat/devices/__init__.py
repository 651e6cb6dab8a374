"""Devices that others measured: from tables of timed operations to a model, and networks to judge it."""
