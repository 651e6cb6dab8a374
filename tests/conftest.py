"""What holds for every test: networks are read as if nothing had been read before."""

from __future__ import annotations

import os

# A reader that was changed would not be asked, and a user's folder would fill.
os.environ["LOLAT_CACHE"] = "off"
