"""An examination of the gateway: configuration, surroundings and servers become findings, each with its remedy."""
