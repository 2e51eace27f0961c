"""The parts of Gnomon joined into one process, as `gnomon serve` runs them, for each platform."""
