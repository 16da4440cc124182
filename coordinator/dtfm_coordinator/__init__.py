"""The coordinator: view of the swarm, allocator, broker, durable state."""
