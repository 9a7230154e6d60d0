"""Many clients on one machine: scripted ones in front of `pml serve`, scripted servers behind it, all checked."""
