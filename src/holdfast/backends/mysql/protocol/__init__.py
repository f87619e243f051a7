"""The lock protocols on MySQL and MariaDB: all decisions, and no sockets, threads or clocks."""
