"""What `gnomon serve` is made of: the parts of Gnomon joined into one process, for each platform that functions run on."""
