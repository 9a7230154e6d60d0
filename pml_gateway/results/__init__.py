"""Tool results: large ones stored and passed by reference, unchanged ones reported as such, output shapes learned."""
