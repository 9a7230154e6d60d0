"""Confinement: servers take no program from the folder of the client that they are started for."""
