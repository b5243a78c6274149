"""Code shared by all recipes: command line, training loop, checkpoints, metrics, report, plots, test
vectors."""
