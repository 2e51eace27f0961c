"""What the report says: each module makes the sections of one figure, or of several of one kind, from what was measured."""
