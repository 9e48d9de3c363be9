"""Commands on plans for several meshes."""
