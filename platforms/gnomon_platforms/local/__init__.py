"""The local platform: functions as processes on this machine, with nothing else installed.

LocalPlatform ── SupervisorClient ── supervisor ── zygotes ── instances
     │  LocalNode (cores per instance), MemoryGroups (limits), Users (user ids)
     └─ LocalInstance (one instance) ── UnixChannel (batches), LogPipe (log lines)
"""
