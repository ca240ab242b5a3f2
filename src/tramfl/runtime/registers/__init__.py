"""Where the record lives: one contract, a SQLite file for one machine, etcd for many."""
