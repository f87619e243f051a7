"""files:///folder: locks of one machine, each a file that is created with O_EXCL."""
