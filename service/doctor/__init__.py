"""`hybridkv doctor`: what a daemon's figures and its host say, and which config keys to turn."""
