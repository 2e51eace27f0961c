"""The open inference protocol, version 2, over REST, with the binary tensor extension. A model has its function's name."""
