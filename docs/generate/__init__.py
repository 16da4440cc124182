"""Pages of `docs/reference` that follow from the code: `python -m docs.generate` writes them, a test compares.

- `command_pages`: every command of a program, with its options and defaults
- `docstrings`: what the code says of a class and its fields, read from its source
- `file_page`: every file of the state folders
- `full_overview`: an overview of a run of which everything is known
- `job_page`: every key of a job file
- `markdown`: tables and text of pages
- `message_page`: every message, by its topic, and every frame and record
- `metrics_page`: every figure of `/metrics`, and every column of the files of metrics
- `pages`: all of these pages by name
- `requests`: requests that programs make of each other, as a table
- `state_files`: what lies in the state folders, as a table
- `timeout_page`: every timeout that a person may want to change
- `usual_fields`: what fields mean whose name says it all in the code
- `view_page`: what a view of machines and links holds, and a script that changes it in time
"""
