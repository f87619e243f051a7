"""postgresql://: locks in tables of a PostgreSQL database, each step one function inside the server."""
