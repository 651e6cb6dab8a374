"""`python -m lolat`: as the command `lolat`."""

from lolat.cli.main import main

if __name__ == "__main__":
    main()
