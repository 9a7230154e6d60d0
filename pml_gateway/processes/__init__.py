"""Child processes: servers, read within limits and logged; workers for what may take too long; all end for certain."""
