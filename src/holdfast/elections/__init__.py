"""Elections: the lock handles that `Client.election` and `AsyncClient.election` return. Imported when first used."""
