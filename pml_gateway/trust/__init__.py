"""Trust: what servers say of themselves is judged, remembered as accepted, and held back where it is an attack."""
