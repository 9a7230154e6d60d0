"""Files, environment and command line become the settings every other stage reads."""
