"""mysql:// and mariadb://: locks in two tables of a MySQL or MariaDB database, in three methods."""
