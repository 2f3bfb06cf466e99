"""`make soak`: workers and a daemon under random work and random kills, every byte verified; see docs/soak.md."""
