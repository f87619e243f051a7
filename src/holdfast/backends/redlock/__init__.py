"""redlock://: locks on a majority of independent Redis servers, with fences that need no consensus between them."""
