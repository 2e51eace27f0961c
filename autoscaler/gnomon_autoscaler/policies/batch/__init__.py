"""`batch` and `batch+`: plans of BATCH's kind from what arrives. They need numpy, so that the registry imports them late."""
