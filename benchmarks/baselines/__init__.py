"""The peers; one module each."""
