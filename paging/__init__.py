"""Sequences: paged address spaces over blocks."""
