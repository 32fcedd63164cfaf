"""Run the command line: `python -m opweave` does the same as `opweave`."""

import sys

from .support import packages

try:
    from .cli import main
except (AttributeError, ImportError):
    if text := packages.shadowed_requirement():
        sys.exit(text)
    raise

main()
