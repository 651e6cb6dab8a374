"""The main job: measure this device, fit, write models/local/<device>.json. See README.md."""

import sys

from lolat.cli.learn import main

if __name__ == "__main__":
    sys.exit(main())
