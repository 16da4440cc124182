"""Documentation: pages for people, and the programs that make parts of them.

- `generate/`: the pages of `docs/reference` that follow from the code
- `recording/`: recordings of a terminal, as animated pictures
"""
