"""The volunteer's daemon: measuring, engine, state."""
