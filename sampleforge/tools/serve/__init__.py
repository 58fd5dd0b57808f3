"""The web page of `sampleforge serve`: runs as they train, in a browser on the same machine.

`tree.py` reads files below the folder of the runs and nothing else, `metrics.py` the columns of
metrics.jsonl, `runs.py` makes of both what the page shows, and `server.py` answers the requests.
Everything is read-only, and a run folder may come from an unknown source: nothing in it is
imported, unpickled or followed.
"""
