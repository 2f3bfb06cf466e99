"""Inference engines' connectors. None is part of this version."""
