"""Preconditioners with parameters, networks that predict one, and their files."""
