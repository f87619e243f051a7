"""sqlite:///path, the embedded default: locks of one machine in one file, with nothing to install or start."""
