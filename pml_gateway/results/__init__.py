"""Results: large ones are kept and named by references, unchanged ones are told as such, their shapes are learned."""
