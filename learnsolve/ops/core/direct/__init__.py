"""Direct solves on the host: factors from one of several libraries, chosen by `choice.py`."""
