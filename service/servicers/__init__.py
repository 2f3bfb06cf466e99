"""The gRPC side of each verb: decode, call the facade, encode. What they raise becomes a status in `boundary.py`."""
