"""The open inference protocol, version 2, over REST, with the binary tensor extension. A model goes by its function's name."""
