"""Workloads, the demo and the suites behind `hybridkv bench`."""
