"""Measuring a device: blocks, timing, worker processes, journal; one backend per framework.

The package is imported as `lolat.microbench`, so its own imports are relative.
"""
