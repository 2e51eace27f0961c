"""The coordinator of a node: which Bodies and Shadows live there, who works with whom, and the empty containers in reserve.

server ── one loop: supervisor, platform, instances (switchboard)
  ├─ messages        what came in, checked
  ├─ coordination    what it means: events in, effects out, no socket and no clock
  │    ├─ table      the function registration table
  │    ├─ pool       how many empty containers to keep, and when to ask for another
  │    ├─ shadows    how a Shadow begins: wish, container, load
  │    ├─ pairing    how it meets its Body, and changes with it
  │    └─ endings    how it ends
  └─ effects         done with links (outboxes) and hand_over (shared memory for a pair)

It plans nothing (the platform says which Shadow works for which Body), and no batch passes through it: when it ends, Bodies and
pairs go on, and the next one learns from them how things stand. AsyFunc, sections 3.4, 3.5 and 5.2.
"""
