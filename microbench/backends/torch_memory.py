"""Lets this process keep the memory that PyTorch frees, so that every call finds it the same."""

from __future__ import annotations

import ctypes
import sys

# Parameters of glibc's mallopt (malloc.h).
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def keep_freed_memory() -> bool:
    """Have the C library keep what is freed instead of giving it back; whether it does.

    PyTorch asks for the memory of every result anew. By default glibc gives large pieces back to the
    system when they are freed, or does not, depending on the sizes seen so far in the process; getting
    them again costs a page fault for every 4 KiB. Here the same block took up to twice as long in one
    process as in another. False on systems whose C library has no such switch.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # musl
        return False
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, -1))
