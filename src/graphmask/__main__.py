"""`python -m graphmask`: the command line."""

from graphmask.cli import main

if __name__ == "__main__":
    main()
