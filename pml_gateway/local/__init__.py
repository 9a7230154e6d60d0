"""One gateway for the machine: thin bridges in the place of stdio gateways, and the process that they attach to."""
