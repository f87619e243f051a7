"""A shop: no product is sold twice, and no order is paid twice, with any number of server processes."""
