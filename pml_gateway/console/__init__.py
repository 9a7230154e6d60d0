"""The console: web pages for the owner of a gateway, over the operations that commands use."""
