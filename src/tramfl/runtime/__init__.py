"""Real sites: one process each, over real networks, in wall-clock time. `grpc` is imported nowhere else.

settings.py   federation.toml and site.toml; wire.py what sites say to each other; journal.py a site's log
registers/    where the record lives
weights/      models on a site's disk, and on their way in
transport/    gRPC with mutual TLS, and certificates
loads/        what a site can spare
training/     the process in which a site trains, and the tests of committed weights
site/         a site: all of the above
operator/     the operator's end
"""
