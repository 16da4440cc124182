"""`dtfm-coordinator report`: a run in one file, to read, keep and hand on.

- `command`: what `report` reads, and where it writes
- `curve_chart`: chart of curves over steps, as SVG
- `report_page`: the page: numbers, charts and tables as HTML that needs nothing else
- `run_facts`: what a coordinator's state folder tells of its run
"""
