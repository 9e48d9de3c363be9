"""What no plan on several meshes undercuts."""
