"""Configuration: files, environment and command line become the settings that every other folder reads."""
