"""Confinement: servers must not run programs from the folder of the client that they are started for."""
