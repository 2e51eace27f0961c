"""What waits: requests, the lanes they wait in, and the rule by which a request is let in or refused at once."""
