"""Where instances live: the only code that talks to a platform. `local` starts processes on this machine."""
