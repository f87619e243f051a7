"""redis://, rediss://, redis+unix://, redis+sentinel://, redis+cluster://: locks on Redis or Valkey."""
