"""`python -m lolat` runs the command `lolat`."""

import sys

if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036 - for who has an older one
        given = ".".join(map(str, sys.version_info[:3]))
        print(f"lolat: this is Python {given}; expected 3.11 or newer", file=sys.stderr)
        sys.exit(2)
    from lolat.cli.main import main

    main()
