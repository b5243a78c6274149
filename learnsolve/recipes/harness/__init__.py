"""What all recipes share: command line, training loop, checkpoints, metrics, report, plots, test vectors."""
