"""The report's text: each module makes the sections of one figure, or of several of one kind, from measurements."""
