"""What all methods share: one system, one loop, one door. docs/architecture.md tells the way of a solve."""
