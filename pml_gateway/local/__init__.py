"""One gateway for the whole machine: clients reach it over a bridge, which starts it if it is not running."""
