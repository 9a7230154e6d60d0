"""Owner: one table of operations that commands ask, of a process that serves or in a gateway of their own."""
