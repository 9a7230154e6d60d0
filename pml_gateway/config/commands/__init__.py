"""Command lines of servers: the words that choose a program, and the package that a runner fetches."""
