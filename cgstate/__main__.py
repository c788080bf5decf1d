"""``python -m cgstate``."""

from cgstate.cli import main

main()
