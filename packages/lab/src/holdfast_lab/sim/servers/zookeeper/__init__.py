"""A model of an ensemble of three ZooKeeper servers.

tree.py has the nodes of one member, ensemble.py replication and sessions, port.py the port of a client.
test_zookeeper_model.py sends the same requests to the model and to a real server, and compares the answers.
"""
