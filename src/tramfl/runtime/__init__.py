"""Real sites: one process each, over real networks, in wall-clock time. `grpc` is imported nowhere else.

settings.py       federation.toml and site.toml
certificates.py   who a site is: a private authority and one certificate each
register.py       where the record lives; sqlite_register.py and etcd_register.py
store.py          weights on a site's disk
wire.py           what sites say to each other; transport.py says it over gRPC with mutual TLS
probe.py          what a site can spare; predictors.py what it will be able to
workshop.py       the process in which a site trains
driver.py         carries out the commands of the round machine
scoring.py        tests committed weights
node.py           a site: all of the above
"""
