"""zookeeper://: ephemeral sequential nodes in an ensemble, in the layout of Curator or of kazoo."""
