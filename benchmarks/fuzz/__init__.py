"""What the fuzz run is made of: inputs made of a seed, a vault that must not open, clients that judge every answer."""
