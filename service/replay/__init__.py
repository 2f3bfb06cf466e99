"""Replays of a trace: what a config, a policy or a model of three tiers would have served of it."""
