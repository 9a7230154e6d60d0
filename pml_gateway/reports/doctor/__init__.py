"""Doctor: what is wrong with the configuration, its surroundings and the servers, each with its remedy."""
