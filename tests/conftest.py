"""What holds for every test: networks are read as if nothing had been read before."""

from __future__ import annotations

import os

# A changed reader would not be asked, and a folder of the user would fill; tests of the cache name one.
os.environ["LOLAT_CACHE"] = "off"
