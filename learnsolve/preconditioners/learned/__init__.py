"""Trainable preconditioners, networks that predict preconditioners, and their files."""
