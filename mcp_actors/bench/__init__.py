"""A load for any server of the protocol, of any SDK, and what is made of its figures.

`fields` send and receive raw messages, one class for each kind of transport, and know nothing of loops and schedulers;
`messages` and `eras` are what they carry. `statistics`, `histograms` and `figures` are about samples, `results` is the
document that a run leaves, `compare` compares two of them, and `plots` and `html` draw. `surroundings` and `process`
say what ran on which machine. The suite in ``benchmarks/`` has scenarios, peers and goals, and imports the rest from
here.

It is reached by ``mcp-actors bench``, and no library: its names may change in any release.
"""
