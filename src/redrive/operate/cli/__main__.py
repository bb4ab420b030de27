"""`python -m redrive.operate.cli`: the same as `redrive`."""

from redrive.operate.cli import main

main()
