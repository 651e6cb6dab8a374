"""Measuring a device: blocks, timing, worker processes, journal; a backend for each framework.

It is imported as `lolat.microbench`, so its own imports are relative.
"""
