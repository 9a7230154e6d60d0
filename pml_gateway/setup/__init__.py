"""Setup: changes of the configuration and of clients' files, planned as a whole before any is written."""
