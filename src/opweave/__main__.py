"""`python -m opweave` is `opweave`."""

from .cli import main

main()
