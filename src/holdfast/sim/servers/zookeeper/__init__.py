"""An ensemble of three ZooKeeper servers, as far as the protocol can tell it from a real one.

tree.py is what each member knows, ensemble.py how they agree and how sessions end, port.py a client's way there. What
makes it honest is test_zookeeper_model.py: the same requests to it and to a real server must get the same answers.
"""
