"""The main job: measure this device, fit, write models/local/<device>.json. See README.md."""

import sys

if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036 - for who has an older one
        given = ".".join(map(str, sys.version_info[:3]))
        print(f"learn_model.py: this is Python {given}; expected 3.11 or newer", file=sys.stderr)
        sys.exit(2)
    from lolat.cli.learn import main

    sys.exit(main())
