"""The commands. Each is a module of its own, registered in `main.py`."""
