"""The coordinator of a node: its Bodies and Shadows, the pairs between them, and the empty containers in reserve.

server ── the event loop over links to the supervisor, the platform and the instances
  ├─ protocol          their messages, parsed and checked
  ├─ node_state        events in, effects out: no socket and no clock
  │    ├─ table              the function registration table
  │    ├─ pool_size          how many empty containers to keep, and when to ask for the next one
  │    └─ shadow_lifecycle   each Shadow from request to end; `shadow_states` has its states and transitions
  └─ effects           what the server executes
node/ ── the same on a node of Kubernetes: a CSI driver gives each Body's pod its socket, an HTTP API takes requests

The coordinator plans nothing (the platform says which Shadow works for which Body), and no batch passes through it: when it ends,
Bodies and pairs go on, and the next coordinator learns the state from them. AsyFunc, sections 3.4, 3.5 and 5.2.
"""
