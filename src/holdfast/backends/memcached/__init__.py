"""memcached://, memcacheds://: locks in a cache, each one item. The protocol is spoken here: no driver is needed."""
