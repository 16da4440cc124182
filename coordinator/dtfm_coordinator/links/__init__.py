"""The links between peers: which are known, asked for, or to be looked at again.

- `chosen_pairs`: choice of the pairs that are measured: few for each peer, however many there are, and those that tell
  most (pure)
- `filled_rounds`: filling of rounds of measurements with pairs of peers who would only wait meanwhile (pure)
- `link_claims`: claims about links: whose word each link's rates are, which of them the other end is to measure, and
  whose word is bounded because it was found to be too high (pure)
- `link_degradation`: degradation of links: which to measure anew, as training finds them slower, or they were slow a
  while ago (pure)
- `line_estimate`: the estimate of what a peer's line carries in all, by its links and by what others have measured
- `link_table`: which links are known, who measures next, and the view that follows (pure)
- `peer_limits`: what peers can send and receive in all, and who measures that next (pure)
- `plan_pairs`: pairs of peers whose links a plan uses (pure)
- `plan_revision`: revision of a plan that was made on estimates: its links are measured before they carry anything, and
  where they are others than was thought it is made anew (pure)
- `probe_requests`: requests for measurements: which peers were asked for, and which of their results are answers (pure)
- `probe_rounds`: rounds in which pairs of peers measure their links, so that no probe disturbs another (pure)
- `view_bounds`: views in which what nobody has measured is as bad, or as good, as it may well be, or was seen to be
  (pure)
"""
