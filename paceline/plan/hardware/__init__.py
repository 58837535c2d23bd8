"""Which hardware: instance types and numbers of hosts, one's own against rented, each by the ordinary search."""
