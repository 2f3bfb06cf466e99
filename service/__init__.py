"""The daemon's outside: config, facade, servicers, sessions, metrics, client and command line."""
