"""How fast a rank computes, copies and talks: measured where it was measured, else from the data sheet."""
