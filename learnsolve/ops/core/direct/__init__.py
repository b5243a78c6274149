"""Direct solves on the host: factors by one of several libraries, chosen by `choice.py`."""
