"""JSON text: large messages are parsed and written in pieces, so that other tasks can run."""
