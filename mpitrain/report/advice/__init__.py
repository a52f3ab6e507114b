"""`mpitrain advise`: find the algorithm and settings that train fastest on a cluster, by successive halving."""
