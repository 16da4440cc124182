"""The links between peers: which are known, asked for, or to be looked at again.

- `link_degradation`: degradation of links: which to measure anew, as training finds them slower, or they were slow a
  while ago (pure)
- `link_table`: which links are known, who measures next, and the view that follows (pure)
- `probe_requests`: requests for measurements: which peers were asked for, and which of their results are answers (pure)
"""
