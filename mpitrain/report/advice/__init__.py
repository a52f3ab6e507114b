"""`mpitrain advise`: which algorithm, and which settings of it, are soonest on a cluster, by successive halving."""
