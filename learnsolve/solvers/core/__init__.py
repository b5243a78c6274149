"""What all methods share: one system, one loop, one entry. docs/architecture.md describes the path of a
solve."""
