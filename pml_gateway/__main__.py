"""`python -m pml_gateway` is `pml`."""

from pml_gateway.cli.app import main

main()
