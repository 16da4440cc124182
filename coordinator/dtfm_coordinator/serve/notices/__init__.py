"""Notices to the owner, wherever that is: the run is done, has failed or stands still, a member was lost.

- `notice_sender`: sender of notices: runs the owner's command, and posts to the owner's webhook
- `notice_watch`: watch over a run's overviews: what of their changes is worth a notice (pure)
"""
