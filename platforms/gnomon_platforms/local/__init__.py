"""The local platform: functions as processes on this machine, with nothing else installed.

LocalPlatform ── SupervisorClient ── supervisor ── zygotes ── instances
     │  LocalNode (who has which cores), MemoryGroups (limits), Users (who is who)
     └─ LocalInstance (one instance) ── UnixChannel (batches), LogPipe (its words)
"""
