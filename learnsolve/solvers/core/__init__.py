"""What all methods share: one system, one loop, one door. docs/architecture.md describes the path of a
solve."""
